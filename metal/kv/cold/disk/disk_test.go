//go:build !race

package disk_test

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk/disktest"
)

func TestTheSystemsFilesPassTheSuite(t *testing.T) {
	disktest.Run(t, func(t *testing.T) (disk.FS, string) { return disk.OS{}, t.TempDir() })
}
