//go:build !race

package weights_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/weights"
)

func nothing(int, quant.Row) error { return nil }

// TestAReadingGivesTensorsInItsOrder: each one whole, and no other.
func TestAReadingGivesTensorsInItsOrder(t *testing.T) {
	f, large := largeFolder(t)
	entries := append(f.Entries(), large)
	r := f.Read(context.Background(), entries)
	defer r.Close()
	if err := r.Rows(entries[1], nothing); !errors.Is(err, weights.ErrInvalid) || !strings.Contains(err.Error(), "out of order") {
		t.Errorf("the second one first: error %v", err)
	}
	for _, e := range entries {
		var rows atomic.Int64
		count := func(_ int, row quant.Row) error {
			n, err := e.Format.CheckRows(e.Columns(), row)
			rows.Add(int64(n))
			return err
		}
		if err := r.Place(e, count); err != nil || rows.Load() != int64(e.Rows()) {
			t.Fatalf("%s: %d of %d rows: %v", e.Name, rows.Load(), e.Rows(), err)
		}
	}
	if err := r.Rows(large, nothing); !errors.Is(err, weights.ErrInvalid) {
		t.Errorf("one more than all: error %v", err)
	}
}

// TestAReadingCanBeLeftEarly: before the first tensor, after it, and after a
// fault of who took it.
func TestAReadingCanBeLeftEarly(t *testing.T) {
	f, large := largeFolder(t)
	full := errors.New("no memory")
	for name, use := range map[string]func(*weights.Reading) error{
		"at once":          func(*weights.Reading) error { return nil },
		"after one":        func(r *weights.Reading) error { return r.Place(large, nothing) },
		"after a fault":    func(r *weights.Reading) error { return r.Place(large, func(int, quant.Row) error { return full }) },
		"and asked for on": func(r *weights.Reading) error { r.Close(); return r.Place(large, nothing) },
	} {
		r := f.Read(context.Background(), []weights.Entry{large, large, large})
		err := use(r)
		r.Close()
		switch name {
		case "after a fault":
			if !errors.Is(err, full) {
				t.Errorf("%s: error %v", name, err)
			}
			if err := r.Place(large, nothing); err == nil {
				t.Errorf("%s: the next tensor is given all the same", name)
			}
		case "and asked for on":
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: error %v", name, err)
			}
		default:
			if err != nil {
				t.Errorf("%s: error %v", name, err)
			}
		}
	}
}

// TestAFaultIsThatOfItsTensor: what is read ahead and cannot be is no fault of
// the tensor before it.
func TestAFaultIsThatOfItsTensor(t *testing.T) {
	f, large := largeFolder(t)
	if err := os.Truncate(filepath.Join(f.Folder().Path(), oneFile), f.Bytes()-64); err != nil {
		t.Fatal(err)
	}
	entries := f.Entries()
	last := entries[len(entries)-1]
	r := f.Read(context.Background(), []weights.Entry{large, last})
	defer r.Close()
	if err := r.Rows(large, nothing); err != nil {
		t.Errorf("%s: %v", large.Name, err)
	}
	if err := r.Rows(last, nothing); !errors.Is(err, weights.ErrTruncated) {
		t.Errorf("%s: error %v, want ErrTruncated", last.Name, err)
	}
}
