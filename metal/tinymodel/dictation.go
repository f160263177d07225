package tinymodel

import (
	"errors"
	"fmt"
	"math"

	"metalfleet.dev/metalfleet/metal/weights"
)

// Dictation has the chat template decide what a model says. The template ends
// a prompt with a call of the macro dictate(text), or drone(text) for an answer
// without end, and the model repeats that text, one byte per token, then ends its
// turn. Templates know the whole conversation and every tool, so that a template
// can play an agent. GGUF only.
//
// The text is written with tokens of its own, one per character and always
// Length in all. One attention head looks back by exactly that distance: its
// query is the rotary embedding's own rotation over Length positions. What is
// found there is the next token.
type Dictation struct {
	// Template of its conversations.
	Template string
	// Length is the number of characters that a text has room for, its end included.
	Length int
}

// dictated is how many characters can be dictated: those of ASCII.
const dictated = 128

// Columns of a dictated model's embedding. The code of a token is one sign for
// each bit; found is where attention puts the code that it found.
const (
	codeBits    = 8
	columnOne   = 0 // the same for every token
	columnCode  = 1
	columnFill  = columnCode + codeBits // gives tokens without code the same norm
	columnFound = 16
)

// codeEnd is the code of the end of a turn; smaller ones are characters.
const codeEnd = dictated

// dictationMacros start every template. A character without a token of its own
// would change the distance, so it is refused.
const dictationMacros = `{%%- macro spell(text) -%%}{%%- for c in text -%%}{%%- if c > '~' -%%}{{ raise_exception('only ASCII can be dictated, not ' ~ c) }}{%%- endif -%%}{{ '<|say ' ~ c ~ '|>' }}{%%- endfor -%%}{%%- endmacro -%%}
{%%- macro dictate(text) -%%}{%%- if text | length >= %[1]d -%%}{{ raise_exception('a dictation of ' ~ text | length ~ ' characters does not fit into %[1]d') }}{%%- endif -%%}{{ spell(text) }}{{ '<|say end|>' * (%[1]d - text | length) }}<|speak|>{%%- endmacro -%%}
{%%- macro drone(text) -%%}{{ spell((text * %[1]d)[:%[1]d]) }}<|speak|>{%%- endmacro -%%}
`

func (d *Dictation) template() string {
	return fmt.Sprintf(dictationMacros, d.Length) + d.Template
}

// add appends the tokens of dictated text: the characters, the end, and the token
// after which the model speaks.
func (d *Dictation) add(v *vocabulary) {
	for c := range dictated {
		v.add(fmt.Sprintf("<|say %c|>", c), controlToken)
	}
	v.add("<|say end|>", controlToken)
	v.add("<|speak|>", controlToken)
}

func (c Config) validDictation() error {
	d := c.Dictation
	switch {
	case d == nil:
		return nil
	case c.Family != Llama || c.Layers != 1 || c.QueryHeads != 1 || !c.Untied || c.Type != weights.F32 || c.Script != nil || c.Merged || c.Endless || c.Finer != 0 || c.RopeFactors || c.Scaling.Kind != "":
		return errors.New("tiny model: one that is dictated to is a Llama in F32 with one layer of one head, a head of its own, an end, and plain positions")
	case d.Template == "" || d.Length < 2 || c.Hidden < columnFound+codeBits || c.HeadSize < 2*codeBits:
		return fmt.Errorf("tiny model: a dictation of %d characters needs a template, %d columns and a head of %d", d.Length, columnFound+codeBits, 2*codeBits)
	case c.Vocabulary < len(learned().tokens)+dictated+2:
		return fmt.Errorf("tiny model: a dictation does not fit a vocabulary of %d", c.Vocabulary)
	}
	return nil
}

// play makes tensors repeat what was dictated.
func (d *Dictation) play(all []tensor, c Config) {
	numbers := map[string][]one{
		"token_embd":   d.embedding(c),
		"output":       d.output(c),
		"blk.0.attn_q": d.query(c), "blk.0.attn_k": d.key(c),
		"blk.0.attn_v": crossing(0, columnCode, 1), "blk.0.attn_output": crossing(columnFound, 0, loud),
	}
	for i := range all {
		if t := &all[i]; t.rows > 0 {
			t.values, t.ones = values{}, numbers[t.gguf]
		}
	}
}

// Sizes of numbers: sharp makes attention see one position alone, loud lets what
// it found drown the rest of the residual, and sure separates the right token from
// the next best one further than any temperature or penalty closes.
const (
	sharp = 60
	loud  = 32
	sure  = 20
)

// crossing copies a code from columns to rows.
func crossing(row, col int, value float32) (out []one) {
	for i := range codeBits {
		out = append(out, one{row + i, col + i, value})
	}
	return out
}

func code(id, n int, scale float32, col int) (out []one) {
	for i := range codeBits {
		sign := float32(-1)
		if n>>i&1 == 1 {
			sign = 1
		}
		out = append(out, one{id, col + i, sign * scale})
	}
	return out
}

// codes are the tokens with a code: letters as the model writes them, and those
// of dictated text. The token after which it speaks reads as a space.
func (d *Dictation) codes() map[int]int {
	out, first := map[int]int{}, len(learned().tokens)
	for ch := range dictated {
		out[controlTokens+ch], out[first+ch] = ch, ch
	}
	out[first+dictated], out[first+dictated+1] = codeEnd, ' '
	return out
}

func (d *Dictation) embedding(c Config) (out []one) {
	codes := d.codes()
	for id := range c.Vocabulary {
		out = append(out, one{id, columnOne, 1})
		if n, ok := codes[id]; ok {
			out = append(out, code(id, n, 1, columnCode)...)
		} else {
			out = append(out, one{id, columnFill, float32(math.Sqrt(codeBits))})
		}
	}
	return out
}

func (d *Dictation) output(c Config) []one {
	out := code(c.endOfTurn(), codeEnd, sure, columnFound)
	for ch := range dictated {
		out = append(out, code(controlTokens+ch, ch, sure, columnFound)...)
	}
	return out
}

// gain scales queries and keys so that the score of the right position is sharp
// for each pair of columns.
func (c Config) gain() float64 {
	norm := math.Sqrt(float64(1+codeBits) / float64(c.Hidden)) // of every embedding
	return norm * math.Sqrt(sharp*math.Sqrt(float64(c.HeadSize)))
}

// key of every position is the same, before it is rotated. The rows of a pair are
// neighbours in GGUF.
func (d *Dictation) key(c Config) (out []one) {
	for pair := range c.HeadSize / 2 {
		out = append(out, one{2 * pair, columnOne, float32(c.gain())})
	}
	return out
}

// query is the key rotated back by Length positions.
func (d *Dictation) query(c Config) (out []one) {
	for pair := range c.HeadSize / 2 {
		angle := float64(d.Length) * math.Pow(c.Theta, -2*float64(pair)/float64(c.HeadSize))
		out = append(out, one{2 * pair, columnOne, float32(c.gain() * math.Cos(angle))}, one{2*pair + 1, columnOne, float32(-c.gain() * math.Sin(angle))})
	}
	return out
}

// Dictated is a small model with a template that dictates. Its context has room
// for the prompts of coding agents.
func Dictated(name, template string) Config {
	return Config{
		Seed: 1, Name: name, Family: Llama, Layers: 1, Hidden: 32, FeedForward: 32, QueryHeads: 1, KVHeads: 1, HeadSize: 64,
		Context: 1 << 17, Vocabulary: 768, NormEps: 1e-5, Type: weights.F32, Untied: true, Theta: 10000,
		Dictation: &Dictation{Template: template, Length: 1024},
	}
}
