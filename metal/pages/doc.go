// Package pages asks the system for memory outside the Go heap, and for large
// pages behind weights.
//
// Weights are touched from end to end and stay, so nothing more becomes
// resident with pages of 2 MiB, and first touch and look-ups cost half as much
// (metal/ref, BenchmarkPut). It owns what that takes on each system. Asking for
// large pages refuses nothing and never fails: where there are none, small ones
// do.
//
// Start reading at Map and PreferLarge.
package pages
