"""As matrix products read it: bf16 or float32."""

from featherback.layers.encodings import Encoding

ENCODING = Encoding()
