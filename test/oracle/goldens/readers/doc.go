// Package readers compares the vectors of all-MiniLM-L6-v2 with those that
// sentence-transformers computed for the same texts, on every back end of the build.
//
// make.sh writes the record in testdata. The test carries the build tag oracle,
// because it needs a model that hack/models/fetch.sh downloads.
package readers
