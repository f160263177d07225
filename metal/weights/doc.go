// Package weights reads what a model on disk says and holds: headers,
// dimensions, and tensors row by row, in one form for every format.
//
// It owns three formats: GGUF files (versions 2 and 3), folders in MLX's
// safetensors with quantisation per layer, and original Hugging Face folders,
// each in one file or many. It owns the canonical tensor names that model
// families are written against (those of the original layout), the reading of
// config.json, the undoing of GGUF's row order for rotary embeddings, and the
// mapping of block formats to symmetric and affine rows; where no layout holds
// them, it says how far values move (Conversion). It refuses to trust a
// file: every length, count and offset is checked against the size of the file
// before anything is allocated, no file outside a model's folder is opened,
// and what it does not know is a typed error that names what is supported. It
// holds no tensor; whoever loads decides where the bytes go. Files are read,
// never mapped: a file that shrinks while it is loaded is an error, not a
// signal.
//
// Start reading at Open and File.Read, then ReadHeader (GGUF) and
// openCollection (folders).
package weights
