"""As matrix products read it: bf16 or float32."""

from featherback.nn.encodings import Encoding

ENCODING = Encoding()
