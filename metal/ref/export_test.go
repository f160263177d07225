package ref

// HasVectors reports whether this program and this processor have vectors.
func HasVectors() bool { return hasVectors() }
