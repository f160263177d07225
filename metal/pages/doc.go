// Package pages maps memory outside the Go heap, and asks the system for large
// pages for weights.
//
// Weights are read from end to end and stay in memory, so that pages of 2 MiB
// make nothing more resident, and halve the cost of first touch and look-ups
// (metal/ref, BenchmarkPut). Asking for large pages never fails: without them
// small ones are used.
//
// Start reading at Map and PreferLarge.
package pages
