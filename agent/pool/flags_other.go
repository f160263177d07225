//go:build !darwin

package pool

// clearFlags does nothing: no engine reaches the folder of its socket.
func clearFlags(string) {}
