//go:build !race

package toolcall

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/test/seed"
)

var inputs = flag.Int("inputs", 60_000, "mutated transcripts, cut at each byte, that TestMutatedTranscriptsAreReadSafely reads")

// wrong is what is wrong with what a parser reports of any answer, empty for nothing.
func wrong(f Format, all Tools, o Options, events []Event, complete int) string {
	var content, thoughts strings.Builder
	name, args, calls, open := "", "", 0, false
	for i, e := range events {
		switch e.Kind {
		case Text:
			content.WriteString(e.Text)
		case Thought:
			thoughts.WriteString(e.Text)
		case Begin:
			if _, declared := all[e.Text]; !declared || open {
				return fmt.Sprintf("a call of %q begins", e.Text)
			}
			name, args, open = e.Text, "", true
		case Arguments:
			if args += e.Text; !open {
				return "arguments outside of a call"
			}
		case End:
			switch {
			case !open:
				return "an end without a call"
			case e.Text == "" && (!json.Valid([]byte(args)) || args[0] != '{'):
				return fmt.Sprintf("a call of %s with the arguments %s", name, args)
			case e.Text == "":
				calls++
			case !o.Held && i < len(events)-1:
				return "a call that is not complete, and more after it"
			}
			open = false
		}
	}
	if open || calls != complete {
		return fmt.Sprintf("%d calls of %d are complete, open %v", calls, complete, open)
	}
	for _, m := range f.Markers() {
		mark := m
		if slices.Contains(o.Tokens, m) {
			mark = f.Mark(m)
		}
		if strings.Contains(content.String(), mark) || strings.Contains(thoughts.String(), mark) {
			return fmt.Sprintf("%q in the content %q", mark, content.String())
		}
	}
	return ""
}

// FuzzCalls: any answer is read the same however it is divided, and safely.
func FuzzCalls(f *testing.F) {
	for i, format := range Formats() {
		for _, c := range transcriptsOf(format) {
			f.Add(uint8(i), c.written, uint8(3), false)
			f.Add(uint8(i), c.written, uint8(0), true)
		}
	}
	all := tools(f)
	f.Fuzz(func(t *testing.T, which uint8, written string, every uint8, held bool) {
		format, o := Formats()[int(which)%len(Formats())], Options{Held: held}
		var pieces []string
		for n, rest := int(every)+1, written; rest != ""; {
			k := min(n, len(rest))
			pieces, rest = append(pieces, rest[:k]), rest[k:]
		}
		for _, cut := range []bool{false, true} {
			p := parser(t, format, o)
			events := append(p.Push(written), p.Flush(cut)...)
			if problem := wrong(format, all, o, events, p.Calls()); problem != "" {
				t.Errorf("cut %v: %s", cut, problem)
			}
			if d := cmp.Diff(joined(events), read(parser(t, format, o), cut, pieces...)); d != "" {
				t.Errorf("cut %v, in pieces of %d: %s", cut, every+1, d)
			}
		}
	})
}

// fragments are what mutations insert.
var fragments = []string{openCall, closeCall, openFunction, closeFunction, openParameter, closeParameter, "</param>", "</", "<", ">", "\n", "{", "}", "[", "]", `"`, `\`, ",", ":", "null", "None", "True", "5.0", " ",
	`{"name": "now"}`, `"name"`, `"arguments": `, `"parameters": {`, "functions.", "write>", "path>", "content>\n", "now", "weather", "rm", mistralCalls, mistralArgs, mistralID, pythonTag, "; ",
	miniCall, miniCallEnd, miniFunction, miniFunctionEnd, miniParameter, dsmlCall, dsmlCallEnd, dsmlFunction, dsmlFunctionEnd, dsmlParameter, dsmlParameterEnd, openKey, closeKey, openValue, closeValue, `city"`, `" string="true">`,
	kimiCalls, kimiCallsEnd, kimiCall, kimiSep, kimiCallEnd, deepCalls, deepCallsEnd, deepCall, deepSep, deepCallEnd, gemmaCall, gemmaCallEnd, gemmaQuote, lfmCalls, lfmCallsEnd, "call:", "(", ")", "='", "'", "=", ":0", "function", "```json\n", "```",
	harmonyStart, harmonyChannel, harmonyMessage, harmonyConstrain, harmonyEnd, harmonyCall, harmonyReturn, "commentary to=functions.", "analysis", "final", "json", "code", "\x00", "\xff", "\ufdd0", "é", "😀"}

// mutated is a transcript with a few changes.
func mutated(rng *rand.Rand, written, other string) string {
	b := []byte(written)
	for range 1 + rng.IntN(4) {
		at := rng.IntN(len(b) + 1)
		end := min(len(b), at+rng.IntN(1+rng.IntN(20)))
		switch rng.IntN(6) {
		case 0:
			b = slices.Delete(b, at, end)
		case 1:
			b = slices.Insert(b, at, slices.Clone(b[at:end])...)
		case 2, 3:
			b = slices.Insert(b, at, []byte(fragments[rng.IntN(len(fragments))])...)
		case 4:
			if at < len(b) {
				b[at] = byte(rng.IntN(256))
			}
		default:
			from := rng.IntN(len(other) + 1)
			b = append(b[:at:at], other[from:]...)
		}
	}
	return string(b)
}

// Mutated transcripts are cut at each byte. For a longer run:
//
//	go test -timeout 0 -v -run MutatedTranscripts ./metal/toolcall -inputs 10000000
func TestMutatedTranscriptsAreReadSafely(t *testing.T) {
	rng := rand.New(rand.NewPCG(seed.Of(t), 7))
	all := tools(t)
	var originals []transcriptIn
	for _, f := range Formats() {
		for _, name := range sorted(transcriptsOf(f)) {
			originals = append(originals, transcriptIn{format: f, written: transcriptsOf(f)[name].written})
		}
	}
	calls, whole, next := 0, 0, 1_000_000
	for n := 0; n < *inputs; {
		if n >= next {
			t.Logf("%d inputs", n)
			next += 1_000_000
		}
		from := originals[rng.IntN(len(originals))]
		written := mutated(rng, from.written, originals[rng.IntN(len(originals))].written)
		o := Options{Held: rng.IntN(2) == 0}
		if rng.IntN(3) == 0 {
			written = strings.ToValidUTF8(written, "\ufffd") // as decoders write it: no bytes around a mark make another
			for _, m := range from.format.Markers() {
				o.Tokens = append(o.Tokens, m)
				written = strings.ReplaceAll(written, m, from.format.Mark(m))
			}
		}
		cut := rng.IntN(2) == 0
		for end := range len(written) + 1 {
			p, err := New(from.format, all, o)
			if err != nil {
				t.Fatal(err)
			}
			events := append(p.Push(written[:end]), p.Flush(cut)...)
			if problem := wrong(from.format, all, o, events, p.Calls()); problem != "" {
				t.Fatalf("%s, held %v, cut %v: %s after %q", from.format, o.Held, cut, problem, written[:end])
			}
			calls += p.Calls()
			if n++; p.Calls() > 0 {
				whole++
			}
		}
	}
	if whole < *inputs/20 {
		t.Errorf("%d of %d inputs have a call: too few to mean anything", whole, *inputs)
	}
	t.Logf("%d inputs, %d calls", *inputs, calls)
}

type transcriptIn struct {
	format  Format
	written string
}

func sorted(all map[string]transcript) (names []string) {
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// An answer that is a nest of calls that are none takes no longer than a few readings.
func TestReadingIsBounded(t *testing.T) {
	for f, piece := range map[Format]string{Hermes: `<tool_call>{"name": "`, QwenXML: "<tool_call><function=write><parameter=path>", Mistral: `[TOOL_CALLS][{"name": "`, Llama: `<|python_tag|>{"name": "`, Harmony: "<|channel|>commentary to=functions.now<|message|>{",
		GLM: "<tool_call>write<arg_key>path</arg_key><arg_value>", MiniMax: miniCall + miniFunction + `"write">` + miniParameter + `"path">`, DeepSeekV32: dsmlCall + dsmlFunction + `"write">` + dsmlParameter + `"path">`, Kimi: kimiWeather + `{"city": "`, Gemma: gemmaCall + "call:weather{city:" + gemmaQuote, LFM: lfmCalls + "[weather(city='", DeepSeekV3: oldWeather + `{"city": "`, DeepSeekV31: deepWeather + `{"city": "`} {
		p := parser(t, f, Options{})
		m, isMarked := p.m.(*marked)
		written := strings.Repeat(piece, 3000)
		p.Push(written)
		p.Flush(false)
		if isMarked && m.again < -len(written)*(againFactor+2) {
			t.Errorf("%s: %d symbols were read again for %d bytes", f, -m.again, len(written))
		}
	}
}
