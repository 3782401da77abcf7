"""The type that matrix products read: bf16 or float32."""

from featherback.nn.encodings import Encoding

ENCODING = Encoding()
