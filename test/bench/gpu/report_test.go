package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var usual = options{tokens: 64}

// said is a round in which everything is as fast as given.
func said(step, rows16, prefilled float64) round {
	return round{
		ours: map[ask]benched{
			usual.decode(1): {Step: step, WeightBytes: 4 << 30}, usual.decode(8): {Step: 2 * step}, usual.decode(16): {Step: rows16},
			prefill(512): {Prefill: prefilled}, prefill(4096): {Prefill: prefilled},
		},
		peer: map[ask]timed{
			usual.decode(1): {Step: 0.006}, usual.decode(8): {Step: 0.03}, usual.decode(16): {Step: 0.06},
			prefill(512): {Prefill: 0.05}, prefill(4096): {Prefill: 0.4},
		},
	}
}

// withoutRows is a round that measured no steps of several rows.
func withoutRows(r round) round {
	for _, n := range streams()[1:] {
		delete(r.ours, usual.decode(n))
		delete(r.peer, usual.decode(n))
	}
	return r
}

func TestABoundThatIsMissedFails(t *testing.T) {
	for name, c := range map[string]struct {
		rounds []round
		says   string
	}{
		"all met":                 {[]round{said(5, 12, 20000), said(5, 12, 20000), said(5, 12, 20000)}, ""},
		"one bad round of many":   {[]round{said(5, 12, 20000), said(5, 12, 20000), said(50, 120, 20000)}, ""},
		"rows now and then":       {[]round{withoutRows(said(5, 0, 20000)), said(5, 12, 20000), withoutRows(said(5, 0, 20000))}, ""},
		"slow rows, now and then": {[]round{withoutRows(said(5, 0, 20000)), said(5, 13.1, 20000)}, "step of 16 rows"},
		"slow streams":            {[]round{said(14, 17.2, 20000)}, "decode, 16 streams"},
		"slow decode":             {[]round{said(7, 14, 20000)}, "decode, 1 stream"},
		"slow prefill":            {[]round{said(5, 12, 900)}, "prefill of 512"},
		"slow rows":               {[]round{said(5, 13.1, 20000)}, "step of 16 rows"},
	} {
		m := model{Shape: "qwen3-8b", options: usual, greeting: greeting{Bandwidth: 3e12}, rounds: c.rounds}
		m.sum()
		r := report{Models: []model{m}}
		err := r.verdict()
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: verdict %v, want it to say %q", name, err, c.says)
		}
		if err := r.write(t.TempDir()); err != nil {
			t.Errorf("%s: write: %v", name, err)
		}
	}
}

// TestAMixtureReadsTheExpertsOfItsToken: what is left is what a step reads.
func TestAMixtureReadsTheExpertsOfItsToken(t *testing.T) {
	for name, c := range map[string]struct {
		config string
		want   int64
	}{
		"tied":                           {`"tie_word_embeddings": true`, 0},
		"untied":                         {`"tie_word_embeddings": false`, 1000 * 64 * 9 / 16},
		"a mixture":                      {`"tie_word_embeddings": true, "num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 128`, 2 * 5 * 3 * 128 * 64 * 9 / 16},
		"a decoder inside another model": {`"text_config": {"tie_word_embeddings": false, "vocab_size": 500, "hidden_size": 64}`, 500 * 64 * 9 / 16},
	} {
		dir := t.TempDir()
		text := `{"vocab_size": 1000, "hidden_size": 64, "quantization": {"bits": 4, "group_size": 64}, ` + c.config + "}"
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := unreadBytes(dir)
		if err != nil || got != c.want {
			t.Errorf("%s: %d bytes are not read, %v; want %d", name, got, err, c.want)
		}
	}
}

func TestAShapeIsMeasuredAnewAndTheOthersStay(t *testing.T) {
	folder := t.TempDir()
	r, err := recorded(folder)
	if err != nil || len(r.Models) > 0 {
		t.Fatalf("an empty folder: %v, %v", r, err)
	}
	for _, m := range []model{{Shape: "qwen3-8b", Date: "first"}, {Shape: "qwen3-0.6b", Date: "first"}, {Shape: "qwen3-8b", Date: "second"}} {
		r.keep(m)
	}
	if err := r.write(folder); err != nil {
		t.Fatal(err)
	}
	if r, err = recorded(folder); err != nil || len(r.Models) != 2 || r.Models[0].Shape != "qwen3-0.6b" || r.Models[1].Date != "second" {
		t.Errorf("%+v, %v", r, err)
	}
	if err := os.WriteFile(filepath.Join(folder, "gpu.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := recorded(folder); err == nil {
		t.Error("half a record is taken for one")
	}
}
