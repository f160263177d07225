// Package pagecache lets benchmarks read files from the disk and not from memory.
//
// It drops a file's pages from the kernel's cache, and says how many are there. It
// refuses to guess: where the kernel does not tell, both are errors.
//
// Start reading at Forget.
package pagecache
