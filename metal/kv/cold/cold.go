// Package cold is the prefix cache on disk. It implements kv.Tier.
//
// It owns the format of a file (format.go), the paths of files (layout.go), the
// engine's side, which reads and writes them (Tier), and the agent's decisions: the
// order of use and the total size (Index), the space that the cache may use (Room),
// and which files to evict (Plan).
//
// An engine creates no folders, removes only files that it failed to write, and
// writes no more bytes than the agent granted. The owner of the folder fences an
// engine by renaming its temporary folder: no path that the engine knows leads
// there any more, so that none of its files can appear later.
//
// The disk is not trusted: a file is used only if its header, key, namespace, length
// and checksum are right. The package sees no tensors.
//
// Start reading at Tier, then Header.
package cold
