package traffic

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// slow answers every request with pieces a second apart, the first after two.
type slow struct{ fail bool }

func (s slow) Ask(_ context.Context, r Request, each func()) (int, int, error) {
	if s.fail {
		return 0, 0, errors.New("refused")
	}
	time.Sleep(time.Second)
	for range r.MaxTokens {
		time.Sleep(time.Second)
		each()
	}
	return 5, r.MaxTokens, nil
}

func TestArrivalsDoNotWaitForAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rs := []Request{{MaxTokens: 4}, {MaxTokens: 4}, {MaxTokens: 2}}
		answers := OpenLoop(t.Context(), slow{}, rs, []time.Duration{0, time.Second, 3 * time.Second})
		f, err := Sum(answers)
		if err != nil {
			t.Fatal(err)
		}
		if f.TTFT != (Spread{2000, 2000, 2000}) || f.InterToken != (Spread{1000, 1000, 1000}) || f.TokensPerSecond != 10.0/6 {
			t.Errorf("%+v", f)
		}
	})
}

func TestARequestThatFailsIsNotLeftOut(t *testing.T) {
	if _, err := Sum(Together(t.Context(), slow{fail: true}, make([]Request, 3))); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("error %v", err)
	}
	synctest.Test(t, func(t *testing.T) {
		if a := Ask(t.Context(), slow{}, Request{}); a.Err == nil {
			t.Error("an answer without a piece is one")
		}
	})
}

func TestArrivalsAreThoseOfTheSeedAndOfTheRate(t *testing.T) {
	const n = 20_000
	at := Poisson(50, n, 3)
	if mean := at[n-1].Seconds() / n; mean < 0.0195 || mean > 0.0205 {
		t.Errorf("%v s between two of 50 a second", mean)
	}
	again, other := Poisson(50, n, 3), Poisson(50, n, 4)
	if again[7] != at[7] || other[7] == at[7] {
		t.Error("a seed does not decide")
	}
	if first, same := Prompt(9, 1), Prompt(9, 1); first == Prompt(9, 2) || first != same || len(strings.Fields(first)) != 9 {
		t.Error("a prompt is not that of its seed")
	}
}

func TestPercentilesAreByNearestRank(t *testing.T) {
	var all []time.Duration
	for i := range 200 {
		all = append(all, time.Duration(200-i))
	}
	for p, want := range map[float64]time.Duration{50: 100, 90: 180, 99: 198, 100: 200, 0.1: 1} {
		if got := Percentile(all, p); got != want {
			t.Errorf("percentile %v is %d, want %d", p, got, want)
		}
	}
	if Percentile(nil, 50) != 0 {
		t.Error("of nothing there is a percentile")
	}
}

func TestAStreamIsReadToItsEnd(t *testing.T) {
	const whole = ": keepalive 1/2\n\ndata: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[{\"text\":\"\"}]}\n\ndata: {\"choices\":[{\"text\":\"b\",\"finish_reason\":\"length\"}]}\n\n" +
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\n"
	n := 0
	prompt, answer, err := read(strings.NewReader(whole+"data: [DONE]\n\n"), func() { n++ })
	if err != nil || n != 2 || prompt != 7 || answer != 3 {
		t.Errorf("%d pieces, %d and %d tokens: %v", n, prompt, answer, err)
	}
	if _, _, err := read(strings.NewReader(whole), func() {}); err == nil {
		t.Error("a stream that was cut is whole")
	}
	if _, _, err := read(strings.NewReader("data: {\n"), func() {}); err == nil {
		t.Error("half an event is one")
	}
}

func TestAPlotIsWellFormed(t *testing.T) {
	svg := Plot("a & b", "x", "y", []Curve{{"us", []float64{1, 2}, []float64{3, 400}}, {"<them>", []float64{1, 2}, []float64{5, 5000}}})
	d := xml.NewDecoder(strings.NewReader(svg))
	circles := 0
	for {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "circle" {
			circles++
		}
	}
	if circles != 4 || strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
		t.Errorf("%d points in %s", circles, svg)
	}
}

// wordy says that a word has three tokens, or what it is told.
type wordy struct{ each int }

func (w wordy) Ask(_ context.Context, r Request, each func()) (int, int, error) {
	each()
	return w.each * len(strings.Fields(r.Prompt)), r.MaxTokens, nil
}

func TestWordsAreCountedByTheServer(t *testing.T) {
	words, err := Words(t.Context(), wordy{3})
	if err != nil || words(8192) != 2731 || words(1) != 1 {
		t.Errorf("%v: 8192 tokens are %d words, one is %d, want 2731 and 1", err, words(8192), words(1))
	}
	if _, err := Words(t.Context(), wordy{0}); err == nil || !strings.Contains(err.Error(), "does not say what it counts") {
		t.Errorf("no tokens: %v", err)
	}
}
