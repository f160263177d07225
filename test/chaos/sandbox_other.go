//go:build !linux

package main

import (
	"context"
	"errors"

	"metalfleet.dev/metalfleet/test/cluster"
	"metalfleet.dev/metalfleet/test/fleet"
)

var errLinux = errors.New("chaos needs the network namespaces of Linux")

func newMacs(context.Context) ([]fleet.Mac, map[string]*cluster.Mac, error) {
	return nil, nil, errLinux
}

func vanish(context.Context, *cluster.Mac) error   { return errLinux }
func reappear(context.Context, *cluster.Mac) error { return errLinux }
