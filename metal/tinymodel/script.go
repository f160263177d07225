package tinymodel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"metalfleet.dev/metalfleet/metal/weights"
)

// Script determines the output of a model that otherwise has random weights. It
// is a chain: each token has one successor, regardless of the rest of the
// prompt. GGUF only.
type Script struct {
	// Template of its conversations; prompts end in the cue of a line.
	Template string
	Lines    []Line
}

// Line is the output after its cue, piece by piece, which ends the turn. A cue
// is a control token, and every piece is a token that no other text has.
type Line struct {
	Cue  string
	Says []string
}

// one is a number of a tensor that is not like all others.
type one struct {
	row, col int
	value    float32
}

// likely is how much better than all others the next token is scored, so that
// no temperature draws another.
const likely = 100

func (s *Script) tokens() (n int) {
	for _, l := range s.Lines {
		n += 1 + len(l.Says)
	}
	return n
}

// add appends the script's tokens to the vocabulary.
func (s *Script) add(v *vocabulary) {
	for _, l := range s.Lines {
		v.add(l.Cue, controlToken)
		for _, piece := range l.Says {
			v.add(letters(piece), normalToken)
		}
	}
}

func letters(s string) string {
	var out []rune
	for i := range len(s) {
		out = append(out, letter(s[i]))
	}
	return string(out)
}

// validScript refuses what cannot be scripted.
func (c Config) validScript() error {
	s := c.Script
	switch {
	case s == nil:
		return nil
	case c.Family != Llama || !c.Untied || c.Type != weights.F32 || c.Merged || c.Endless || c.Finer != 0:
		return errors.New("tiny model: one with a script is a Llama in F32 with a head of its own, an end, and no merges beyond the learned")
	case s.Template == "" || s.tokens() == 0 || s.tokens() > c.Hidden:
		return fmt.Errorf("tiny model: a script of %d tokens wants a template, and as many columns; there are %d", s.tokens(), c.Hidden)
	case c.Vocabulary < len(learned().tokens)+s.tokens():
		return fmt.Errorf("tiny model: a script of %d tokens does not fit a vocabulary of %d", s.tokens(), c.Vocabulary)
	}
	known := map[string]bool{}
	for _, t := range learned().tokens {
		known[t] = true
	}
	for _, l := range s.Lines {
		for _, t := range append([]string{l.Cue}, l.Says...) {
			if t == "" || len(l.Says) == 0 || known[letters(t)] {
				return fmt.Errorf("tiny model: %q of a script is a token already, or says nothing", t)
			}
			known[letters(t)] = true
		}
	}
	return nil
}

// play makes tensors say the script: attention and feed-forward add nothing, a
// token of it is one column, and the head leads from there to the next one.
func (s *Script) play(all []tensor, end, hidden int) {
	var in, out []one
	id, col := len(learned().tokens), 0
	for _, l := range s.Lines {
		for i := range 1 + len(l.Says) {
			next := id + 1
			if i == len(l.Says) {
				next = end
			}
			in = append(in, one{id, col, 1})
			out = append(out, one{next, col, likely / float32(math.Sqrt(float64(hidden)))}) // a norm is at the root of the width
			id, col = id+1, col+1
		}
	}
	for i := range all {
		switch t := &all[i]; {
		case t.rows == 0:
		case t.gguf == "token_embd":
			t.values, t.ones = values{}, in
		case t.gguf == "output":
			t.values, t.ones = values{}, out
		default:
			t.values = values{}
		}
	}
}

// among writes the numbers that are not like all others.
func (b block) among(fill func([]byte)) func([]byte) {
	from, size := 0, b.rowBytes()
	return func(rows []byte) {
		fill(rows)
		n := len(rows) / size
		for _, o := range b.ones {
			if o.row >= from && o.row < from+n {
				binary.LittleEndian.PutUint32(rows[(o.row-from)*size+4*o.col:], math.Float32bits(o.value))
			}
		}
		from += n
	}
}

// Caller is a model that calls get_weather where a conversation has tools, and
// says of what the tool gave whether it holds the word sunny. A tool that takes an
// input, as custom tools do, is given that in place of a city. Where a
// grammar forbids the next piece of a script, the model draws any token in its
// place, so the script's arguments have to be those of the tool.
func Caller() Config {
	c := Default()
	c.Name, c.Untied, c.Type, c.Context = "caller", true, weights.F32, 2048
	c.Script = &Script{Template: callerTemplate, Lines: []Line{
		{"<|call|>", []string{"<tool_call>\n", `{"name": `, `"get_weather", `, `"arguments": `, `{"city": `, `"Par`, `is"}}`, "\n</tool_call>"}},
		{"<|input|>", []string{"<tool_call>\n{", `"name": "get_weather"`, `, "arguments": `, `{"input": `, `"Pa`, `ris"`, "}}\n</tool_call>"}},
		{"<|sunny|>", []string{"It is ", "sunny ", "in Paris."}},
		{"<|other|>", []string{"The tool ", "did not ", "say sunny."}},
		{"<|plain|>", []string{"I have ", "no tool ", "to ask."}},
	}}
	return c
}

// callerTemplate writes tools and calls as Qwen's do, and ends in a cue.
const callerTemplate = `{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] or '' }}{% for call in message['tool_calls'] or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if messages[-1]['role'] == 'tool' %}{{ '<|sunny|>' if 'sunny' in messages[-1]['content'] else '<|other|>' }}{% elif tools %}{{ '<|input|>' if 'input' in ((tools[0].function.parameters or {}).properties or {}) else '<|call|>' }}{% else %}<|plain|>{% endif %}{% endif %}`
