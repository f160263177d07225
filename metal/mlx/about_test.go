//go:build mlx

package mlx

import (
	"errors"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

func TestTheFrameworkSaysWhatItIs(t *testing.T) {
	b := New(Options{})
	if _, err := b.About(); !errors.Is(err, tensor.ErrThread) {
		t.Errorf("before Attach: error %v, want ErrThread", err)
	}
	if err := b.Attach(); err != nil {
		t.Fatal(err)
	}
	facts, err := b.About()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(facts["version"], ".") || facts["device"] != "cpu" && facts["device"] != "gpu" {
		t.Errorf("facts are %v, want a version and a device", facts)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func TestAnExceptionOfTheFrameworkComesBackAsAnError(t *testing.T) {
	b := New(Options{})
	if err := b.Attach(); err != nil {
		t.Fatal(err)
	}
	var said *Error
	if err := b.Provoke(); !errors.As(err, &said) || !strings.Contains(said.Text, "broadcast") {
		t.Errorf("error %v, want the framework's words on shapes that cannot be broadcast", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func TestWhatTheSystemRefusedIsNotCounted(t *testing.T) {
	b := New(Options{})
	if err := b.Attach(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // 1 TiB
		if _, err := b.LoadMatrix(quant.DenseOf(quant.Float32), 1<<10, 1<<28, nil); !errors.Is(err, tensor.ErrMemory) {
			t.Fatalf("error %v, want ErrMemory", err)
		}
	}
	if err := b.resetPeak(); err != nil {
		t.Error(err)
	}
	if err := b.measure(); err != nil {
		t.Error(err)
	}
	if m := b.Memory(); m.Active() != 0 || b.Peak() != 0 {
		t.Errorf("%d bytes are active and %d were at the peak, want none", m.Active(), b.Peak())
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}
