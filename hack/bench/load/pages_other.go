//go:build !linux

package main

import "errors"

var errLinux = errors.New("the benchmark drops pages of files from the kernel's cache and looks whether it worked: it needs Linux")

func forget(string) error { return errLinux }

func resident(string) (in, size int64, err error) { return 0, 0, errLinux }

func available() (int64, error) { return 0, errLinux }
