//go:build stories && !linux

package system

func enterSandbox() {}
