package inspect

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// Slow files of this Mac use a slot for a limited time: a file, a folder, and an adapter.
func TestALookAtLocalFilesEnds(t *testing.T) {
	dir := t.TempDir()
	if err := tinymodel.WriteFolder(filepath.Join(dir, "model"), family(), tinymodel.Layout{}); err != nil {
		t.Fatal(err)
	}
	if err := tinymodel.Write(filepath.Join(dir, "m.gguf"), tinymodel.Default()); err != nil {
		t.Fatal(err)
	}
	if err := (tinymodel.Adapter{Seed: 1, Rank: 4, Alpha: 8}).Write(filepath.Join(dir, "one"), family()); err != nil {
		t.Fatal(err)
	}
	root, err := store.OpenRoot(dir, filepath.Join(t.TempDir(), "notes"), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	r := &Resolver{Root: root, localTime: time.Nanosecond}
	orders := map[string]v1alpha1.Inspection{
		"file":    {Source: "file://m.gguf"},
		"folder":  {Source: "file://model"},
		"adapter": {Source: "file://model", Adapters: []v1alpha1.AdapterSpec{{Name: "one", Source: "file://one"}}},
	}
	for name, order := range orders {
		_, err := r.Resolve(t.Context(), order)
		if download.Reason(err, "") != v1alpha1.ReasonSourceUnreachable || !download.IsTransient(err) || !strings.Contains(err.Error(), "faster disk") {
			t.Errorf("%s: %v, want that it took too long", name, err)
		}
		if name == "adapter" && err != nil && !strings.Contains(err.Error(), "adapter one") {
			t.Errorf("%v: want the adapter to be named", err)
		}
	}
	r.localTime = 0
	for name, order := range orders {
		if _, err := r.Resolve(t.Context(), order); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := r.withinLocal(t.Context(), 64<<30)
	defer cancel()
	if ends, _ := ctx.Deadline(); time.Until(ends) < 30*time.Minute {
		t.Errorf("a file of 64 GiB has to be read within %v", time.Until(ends))
	}
}
