//go:build !race

package tokenizer

import (
	"errors"
	"strings"
	"testing"
)

// TestALongPieceEndsWhenItIsStopped: a text without separators is one piece. Work is counted in
// checks, of which every 256th asks whether to go on.
func TestALongPieceEndsWhenItIsStopped(t *testing.T) {
	v := newVocabulary(3)
	for _, text := range []string{"[UNK]", "a", "##a"} {
		if err := v.add(text, kindNormal, true); err != nil {
			t.Fatal(err)
		}
	}
	uni, err := newUnigram(v, []float64{-9, -1, -1}, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	words, err := newWordPiece(v, 0, "##", maxWordChars)
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]model{"unigram": uni, "wordpiece": words} {
		t.Run(name, func(t *testing.T) {
			stopped := errors.New("stopped")
			calls, last := 0, 3
			b := &bounds{EncodeOptions: EncodeOptions{Limit: maxWordChars, Stop: func() error {
				if calls++; calls == last {
					return stopped
				}
				return nil
			}}}
			piece := strings.Repeat("a", maxWordChars)
			m.newWorker(false, b).encode(nil, piece)
			if !errors.Is(b.err, stopped) || calls != last || b.checks != (last-1)*stopEvery+1 {
				t.Errorf("%v after %d calls and %d checks", b.err, calls, b.checks)
			}
			calls, last = 0, -1
			whole := &bounds{EncodeOptions: b.EncodeOptions}
			if ids := m.newWorker(false, whole).encode(nil, piece); whole.err != nil || len(ids) != maxWordChars || calls != maxWordChars/stopEvery {
				t.Errorf("a piece that is not stopped: %d ids, %v, %d calls", len(ids), whole.err, calls)
			}
		})
	}
}
