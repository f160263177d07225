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

// TestALongPieceOfUnigramsIsReadInParts: no part ends inside a character, and none is read once the
// text has more tokens than the limit.
func TestALongPieceOfUnigramsIsReadInParts(t *testing.T) {
	v := newVocabulary(3)
	for _, text := range []string{"[UNK]", "\u3042", "\u3042\u3042"} {
		if err := v.add(text, kindNormal, true); err != nil {
			t.Fatal(err)
		}
	}
	m, err := newUnigram(v, []float64{-9, -2, -1}, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	piece := strings.Repeat("\u3042", maxPart) // three bytes each
	var text strings.Builder
	w := m.newWorker(false, new(bounds)).(*unigramWorker)
	for _, id := range w.encode(nil, piece) {
		text.WriteString(v.text(id))
	}
	if text.String() != piece || len(w.best) > maxPart+1 {
		t.Errorf("%d bytes of %d, in parts of %d", text.Len(), len(piece), len(w.best)-1)
	}
	b := &bounds{EncodeOptions: EncodeOptions{Limit: 10}}
	if ids := m.newWorker(false, b).encode(nil, piece); !errors.Is(b.err, ErrTooMany) || len(ids) > maxPart {
		t.Errorf("%d ids with a limit of 10: %v", len(ids), b.err)
	}
}
