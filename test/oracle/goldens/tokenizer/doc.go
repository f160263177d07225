// Package tokenizer compares metal/tokenizer with the Hugging Face tokenizers
// library and llama.cpp's vocabularies: token ids, decoded texts and streams.
//
// compare.py writes what the references make of many texts; the test (build tag
// oracle) reads each tokenizer from its tokenizer.json and, where it came from
// there, from GGUF, and fails for the first differences.
package tokenizer
