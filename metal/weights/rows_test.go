//go:build !race

package weights_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/weights"
)

// largeFolder is a folder with a matrix of many pieces.
func largeFolder(t *testing.T) (*weights.File, weights.Entry) {
	t.Helper()
	m := newFolder("llama")
	const vocabulary = 60_000
	m.config["vocab_size"] = vocabulary
	m.dense("model.embed_tokens", quant.Float16, vocabulary, tinyHidden)
	m.quantized("model.embed_tokens", 8, 32, quant.Float16)
	f := openFolder(t, m)
	e, _ := f.Entry("model.embed_tokens.weight")
	if e.Bytes < 3<<20 {
		t.Fatalf("%d bytes are too few pieces", e.Bytes)
	}
	return f, e
}

func TestRowsOfManyPiecesComeWhole(t *testing.T) {
	f, e := largeFolder(t)
	for r, row := range matrixOf(t, f, e.Path) {
		for i, got := range row {
			if want := wantQuantized(8, 32, r, i); got != want {
				t.Fatalf("[%d, %d] is %v, want %v", r, i, got, want)
			}
		}
	}
	var mu sync.Mutex
	seen, calls := map[int]bool{}, 0
	sizes, err := e.Format.Sizes(e.Columns())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Place(context.Background(), e, func(row int, r quant.Row) error {
		rows, err := e.Format.CheckRows(e.Columns(), r)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		calls++
		for i := range rows {
			v := make([]float32, e.Columns())
			if err := e.Format.Dequantize(r.At(i, sizes), v); err != nil {
				return err
			}
			if seen[row+i] || v[5] != wantQuantized(8, 32, row+i, 5) || v[63] != wantQuantized(8, 32, row+i, 63) {
				return fmt.Errorf("row %d came twice, or is %v", row+i, v)
			}
			seen[row+i] = true
		}
		return nil
	}); err != nil || calls > len(seen)/100 || len(seen) != e.Rows() {
		t.Errorf("%d of %d rows were placed in %d calls: %v", len(seen), e.Rows(), calls, err)
	}
}

func TestLoadingStopsAtTheFirstFault(t *testing.T) {
	f, e := largeFolder(t)
	for name, load := range map[string]func(context.Context, weights.Entry, func(int, quant.Row) error) error{"Rows": f.Rows, "Place": f.Place} {
		full := errors.New("no memory")
		err := load(context.Background(), e, func(row int, _ quant.Row) error {
			if row > 20_000 {
				return full
			}
			return nil
		})
		if !errors.Is(err, full) {
			t.Errorf("%s: error %v, want that of the receiver", name, err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		err = load(ctx, e, func(row int, _ quant.Row) error {
			if row <= 20_000 {
				cancel()
			}
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v, want context.Canceled", name, err)
		}
	}
}

func TestAShardThatShrinksWhileItIsLoadedIsAnError(t *testing.T) {
	f, e := largeFolder(t)
	if err := os.Truncate(filepath.Join(f.Folder().Path(), oneFile), f.Bytes()-2<<20); err != nil {
		t.Fatal(err)
	}
	for name, load := range map[string]func(context.Context, weights.Entry, func(int, quant.Row) error) error{"Rows": f.Rows, "Place": f.Place} {
		var failed error
		for _, e := range append(f.Entries(), e) {
			failed = errors.Join(failed, load(context.Background(), e, func(int, quant.Row) error { return nil }))
		}
		if !errors.Is(failed, weights.ErrTruncated) {
			t.Errorf("%s: error %v, want ErrTruncated", name, failed)
		}
	}
}

// TestTensorsAreWholeInAnyOrder: the next one in the file is begun early, and
// asked for or not.
func TestTensorsAreWholeInAnyOrder(t *testing.T) {
	m := newFolder("llama")
	const vocabulary = 30_000
	m.config["vocab_size"], m.config["tie_word_embeddings"] = vocabulary, false
	embed, head := "model.embed_tokens", "lm_head"
	m.dense(embed, quant.Float16, vocabulary, tinyHidden)
	m.dense(head, quant.Float16, vocabulary, tinyHidden)
	f := openFolder(t, m)
	for _, path := range []string{head, embed, head, embed, embed, head, head} {
		rows := 0
		e, _ := f.Entry(path + ".weight")
		err := f.Rows(context.Background(), e, func(row int, r quant.Row) error {
			v := make([]float32, tinyHidden)
			if err := e.Format.Dequantize(r, v); err != nil {
				return err
			}
			for i, got := range v {
				if want := value(path, row*tinyHidden+i); got != want || row != rows {
					return fmt.Errorf("row %d, the %d. to come: [%d] is %v, want %v", row, rows, i, got, want)
				}
			}
			rows++
			return nil
		})
		if err != nil || rows != vocabulary {
			t.Fatalf("%s: %d of %d rows: %v", path, rows, vocabulary, err)
		}
	}
}
