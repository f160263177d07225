// Package weights reads models from files: headers, dimensions, and tensors row by
// row, in one form for every format.
//
// It reads three formats: GGUF files (versions 2 and 3), folders in MLX's safetensors
// with quantization per layer, and original Hugging Face folders, each in one file
// or several. Tensors have the names of the original layout, which model families
// use. GGUF's row order for rotary embeddings is undone, and block formats become
// symmetric or affine rows; Conversion reports by how much values change if that is
// not exact.
//
// Files are not trusted: every length, count and offset is checked against the size
// of the file before anything is allocated, no file outside a model's folder is
// opened, and unknown formats are typed errors that name what is supported. The
// caller decides where the bytes of tensors are stored. Files are read, never mapped:
// a file that shrinks while it is loaded causes an error, not a signal.
//
// Start reading at Open and File.Read, then ReadHeader (GGUF) and openCollection
// (folders).
package weights
