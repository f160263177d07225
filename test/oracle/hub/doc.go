// Package hub lets the official Python client of the Hugging Face Hub download
// from agent/hub/hubtest, the hub that our tests use: what it downloads, and the
// errors it reports, must be those of the real Hub.
//
// The test carries the build tag oracle, because it needs that client.
package hub
