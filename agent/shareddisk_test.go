package agent

import (
	"os"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/agent/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

func TestTheCacheGivesWayToWeightsOfItsDisk(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{cold.Marker: "", "of-others": "a file"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	owner, err := cold.Open(cold.Options{FS: disk.OS{}, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	open := func() *cold.Owner { return owner }
	for name, d := range map[string]sharedDisk{
		"another disk":    {weights: "/dev", cache: dir, owner: open},
		"no such folder":  {weights: filepath.Join(dir, "none"), cache: dir, owner: open},
		"it is not open":  {weights: dir, cache: dir, owner: func() *cold.Owner { return nil }},
		"not on any disk": {owner: open},
	} {
		if d.Bytes() != 0 || d.GiveWay(1) != 0 {
			t.Errorf("%s: the cache gives way", name)
		}
	}
	d := sharedDisk{weights: t.TempDir(), cache: dir, owner: open}
	had := d.Bytes()
	if got := d.GiveWay(1); had == 0 || got != had || d.Bytes() != 0 {
		t.Errorf("of %d bytes the cache gives %d and keeps %d", had, got, d.Bytes())
	}
}
