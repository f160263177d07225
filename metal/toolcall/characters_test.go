//go:build !race

package toolcall

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// A call that is refused, and a header that is none, are not divided within a character: their
// texts are sent as UTF-8, and together they are what was written.
func TestTextsAreNotDividedWithinACharacter(t *testing.T) {
	for _, letter := range []string{"é", "名", "😀"} {
		for extra := range len(letter) {
			long := strings.Repeat("a", extra) + strings.Repeat(letter, 8<<10)
			for f, written := range map[Format]string{
				QwenXML:     "<function=write><parameter=" + long,
				MiniMax:     miniFunction + `"write">` + miniParameter + `"` + long,
				DeepSeekV32: dsmlFunction + `"write">` + dsmlParameter + `"` + long,
				Gemma:       "call:weather{" + long,
				LFM:         "[weather(" + long,
				Harmony:     long,
			} {
				before := map[Format]string{MiniMax: miniCall, DeepSeekV32: dsmlCall, Gemma: gemmaCall, LFM: lfmCalls}[f]
				p := parser(t, f, Options{Held: true})
				var got strings.Builder
				for _, e := range append(p.Push(before+written), p.Flush(false)...) {
					if !utf8.ValidString(e.Text) {
						t.Errorf("%s with %d and %s: an event of kind %d is no UTF-8", f, extra, letter, e.Kind)
					}
					if e.Kind == Text || e.Kind == End {
						got.WriteString(e.Text)
					}
				}
				if got.String() != written {
					t.Errorf("%s with %d and %s: %d bytes of %d came back: %.60q", f, extra, letter, got.Len(), len(written), got.String())
				}
			}
		}
	}
}

// A name of a parameter that the grammar has the model write is one that the parser reads.
func TestLongNamesOfParametersAreWrittenAndRead(t *testing.T) {
	for f, call := range map[Format][2]string{
		QwenXML:     {"<tool_call>\n<function=f>\n<parameter=", ">\na\n</parameter>\n</function>\n</tool_call>"},
		GLM:         {"<tool_call>f\n<arg_key>", "</arg_key>\n<arg_value>a</arg_value>\n</tool_call>"},
		MiniMax:     {miniCall + "\n" + miniFunction + `"f">` + "\n" + miniParameter + `"`, `">a` + miniParameterEnd + "\n" + miniFunctionEnd + "\n" + miniCallEnd},
		DeepSeekV32: {dsmlCall + "\n" + dsmlFunction + `"f">` + "\n" + dsmlParameter + `"`, `" string="true">a` + dsmlParameterEnd + "\n" + dsmlFunctionEnd + "\n" + dsmlCallEnd},
		Gemma:       {gemmaCall + "call:f{", ":" + gemmaQuote + "a" + gemmaQuote + "}" + gemmaCallEnd},
		LFM:         {lfmCalls + "[f(", "='a')]" + lfmCallsEnd},
	} {
		for _, name := range []string{"a", strings.Repeat("名", 100), strings.Repeat("😀", 128), strings.Repeat("名", 400)} {
			all, err := ReadTools([]byte(`[{"function":{"name":"f","parameters":{"type":"object","properties":{"` + name + `":{"type":"string"}},"required":["` + name + `"]}}}]`))
			if err != nil {
				t.Fatal(err)
			}
			written := call[0] + name + call[1]
			m := tableOf(t, f.Grammar(all, Hold{})).Match(false)
			if whole := m.Advance([]byte(written)) && m.Accepting(); whole == (len(name) > 512) {
				t.Errorf("%s: the grammar takes a name of %d bytes: %v", f, len(name), whole)
			}
			if len(name) > 512 {
				continue
			}
			p, err := New(f, all, Options{Held: true})
			if err != nil {
				t.Fatal(err)
			}
			if got := read(p, false, written); len(got) != 1 || !strings.HasPrefix(got[0], `C f {"`+name+`":`) {
				t.Errorf("%s: a name of %d bytes is read as %.80q", f, len(name), got)
			}
		}
	}
}
