// Package sandbox runs a test inside namespaces of its own (mounts, network,
// processes, host name), where it can make machines with links that it cuts,
// mount disks and leave no trace.
//
// It owns the start of the test program inside, its loopback, the machines and
// the address at which they reach this one. It refuses a user who is not root, a
// machine that lacks a program that a sandbox runs, and any system but Linux.
//
// Start reading at Enter.
package sandbox
