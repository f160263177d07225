// Package cold keeps blocks of the cache on disk, behind a kv.Tier.
//
// It owns the format of a file (format.go), where files lie (layout.go), the
// engine's side, which writes and reads them (Tier), and what the agent decides
// about them: the order of use and the total (Index), how much the disk may
// hold (Room), and what goes (Plan). An engine makes no folder and removes
// nothing but what it could not write; it writes no byte that the agent did not grant. Whoever owns the folder
// fences an engine by moving its temporary folder away: no path that the engine
// knows leads there any more, so nothing of it can appear later.
//
// It refuses to trust a disk: a file is read only if its header, key, namespace,
// length and checksum are those of what was put. It sees no tensor.
//
// Start reading at Tier, then Header.
package cold
