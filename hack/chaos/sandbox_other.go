//go:build !linux

package main

import (
	"context"
	"errors"

	"metalfleet.dev/metalfleet/hack/cluster"
	"metalfleet.dev/metalfleet/hack/fleet"
)

const serverAddress = ""

var errLinux = errors.New("chaos needs the network namespaces of Linux")

func sandboxed(context.Context, func(context.Context) error) error { return errLinux }

func newMacs(context.Context) ([]fleet.Mac, map[string]*cluster.Mac, error) {
	return nil, nil, errLinux
}

func vanish(context.Context, *cluster.Mac) error   { return errLinux }
func reappear(context.Context, *cluster.Mac) error { return errLinux }
