// Package weights reads what a model file says and holds: headers, dimensions,
// and tensors row by row, in one form for every format on disk.
//
// It owns the GGUF reader (versions 2 and 3), the canonical tensor names that
// model families are written against, the undoing of GGUF's row order for
// rotary embeddings, and the mapping of block formats to affine rows. It
// refuses to trust a file: every length, count and offset is checked against
// the size of the file before anything is allocated, and what it does not know
// is a typed error that names what is supported. It holds no tensor and no
// goroutine; whoever loads decides where the bytes go. Files are read, never
// mapped: a file that shrinks while it is loaded is an error, not a signal.
//
// Start reading at ReadHeader, then Open and File.Rows.
package weights
