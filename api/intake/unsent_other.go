//go:build !linux

package intake

import "net"

// widen is for Linux.
func widen(net.Conn, int) {}

// unsent is not known: gateways run on Linux.
func unsent(net.Conn) int { return 0 }

// Memory is not known either.
func Memory(net.Conn) (received, unsent int64) { return 0, 0 }
