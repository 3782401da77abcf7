// Renders Ollama templates with the engine that Ollama uses, Go's text/template, and with its functions and types.
// It reads [{"template": ..., "cases": [{"messages": [...], "tools": [...]}]}] and writes the texts of all cases.
// Run it as: go run render.go < questions.json > answers.json
package main

import (
	"bytes"
	"encoding/json"
	"os"
	"text/template"
)

type Property struct {
	Type        any    `json:"type,omitempty"`
	Description string `json:"description,omitempty"`
	Enum        []any  `json:"enum,omitempty"`
}
type Parameters struct {
	Type       string              `json:"type"`
	Required   []string            `json:"required,omitempty"`
	Properties map[string]Property `json:"properties"`
}
type Function struct {
	Name        string     `json:"name"`
	Description string     `json:"description,omitempty"`
	Parameters  Parameters `json:"parameters"`
}
type Tool struct {
	Type     string   `json:"type"`
	Function Function `json:"function"`
}
type Call struct {
	Function struct {
		Name      string
		Arguments map[string]any
	}
}
type Message struct {
	Role      string
	Content   string
	ToolName  string
	ToolCalls []Call `json:"tool_calls"`
}
type Case struct {
	Messages []*Message
	Tools    []Tool
}

func main() {
	var given []struct {
		Template string
		Cases    []Case
	}
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil {
		panic(err)
	}
	functions := template.FuncMap{"json": func(v any) string { b, _ := json.Marshal(v); return string(b) }}
	var answers [][]string
	for _, each := range given {
		parsed := template.Must(template.New("").Option("missingkey=zero").Funcs(functions).Parse(each.Template))
		var texts []string
		for _, one := range each.Cases {
			system := ""
			for _, m := range one.Messages {
				if m.Role == "system" {
					system = m.Content
				}
			}
			var text bytes.Buffer
			values := map[string]any{"System": system, "Messages": one.Messages, "Tools": one.Tools, "Response": ""}
			if err := parsed.Execute(&text, values); err != nil {
				panic(err)
			}
			texts = append(texts, text.String())
		}
		answers = append(answers, texts)
	}
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	out.SetIndent("", " ")
	out.Encode(answers)
}
