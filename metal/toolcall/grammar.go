package toolcall

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"metalfleet.dev/metalfleet/metal/grammar"
)

// Hold describes how an answer is constrained.
type Hold struct {
	// Tokens are those of Options.
	Tokens []string
	// Required: the answer is calls and nothing else, or with Name one call of that function.
	// Single allows one call.
	Required bool
	Name     string
	Single   bool
	// Strict holds arguments to all that their schema says and that can be enforced, and takes
	// no flaw in their JSON.
	Strict bool
}

// Grammar returns the constraint of answers whose calls this format's parser
// reads. If calls are not required, any text may precede and follow them; after
// a call's opening marker the name, the structure and the arguments are
// constrained.
func (f Format) Grammar(tools Tools, h Hold) *grammar.Calls {
	c := &grammar.Calls{Free: !h.Required, Sloppy: !h.Strict && !h.Required, Many: !h.Single && h.Name == ""}
	for _, name := range slices.Sorted(maps.Keys(tools)) {
		if h.Name == "" || name == h.Name {
			c.Functions = append(c.Functions, grammar.Function{Name: quoted(name), Schema: tools.schema(name)})
		}
	}
	w := writing{format: f, tokens: h.Tokens, strict: h.Strict}
	if h.Required {
		w.forced(c)
		return c
	}
	w.free(c)
	return c
}

// quoted is a name as JSON has it, without the quotes.
func quoted(name string) string {
	raw, err := json.Marshal(name)
	if err != nil {
		panic(fmt.Sprintf("a string cannot be encoded as JSON: %v", err))
	}
	return string(raw[1 : len(raw)-1])
}

// schema of a function's arguments; one that declares none takes none.
func (t Tools) schema(name string) string {
	if p := t[name].parameters; len(p) > 0 && string(p) != "null" {
		return string(p)
	}
	return `{"type":"object","additionalProperties":false}`
}

// writing makes the expressions of a format.
type writing struct {
	format Format
	tokens []string
	strict bool
}

// mark is a marker as the answer has it: a control token, or its letters.
func (w writing) mark(marker string) string {
	if slices.Contains(w.tokens, marker) {
		return w.format.Mark(marker)
	}
	return marker
}

// is a regular expression of a marker.
func (w writing) is(marker string) string { return grammar.Literal(w.mark(marker)) }

// Parts of regular expressions.
const (
	blanks = `[ \n\t\r]{0,24}`
	// namespace may stand before a name.
	namespace = `(functions\.)?`
	idle      = `"(id|type)"` + blanks + `:` + blanks + "(\"[^\"\\\\\ufdd0-\ufdef]{0,64}\"|0|[1-9][0-9]{0,17})"
	keys      = `"(arguments|parameters)"` + blanks + `:` + blanks
	// opens, inner and closes stand around the name and the arguments of an object; unclosed
	// lacks the bracket.
	opens    = `\{` + blanks + `(` + idle + blanks + `,` + blanks + `)*"name"` + blanks + `:` + blanks + `"` + namespace
	inner    = `"` + blanks + `,` + blanks + `(` + idle + blanks + `,` + blanks + `)*` + keys
	unclosed = `(` + blanks + `,` + blanks + idle + `)*(` + blanks + `,)?` + blanks
	closes   = unclosed + `\}?`
	without  = `"` + unclosed + `\}`
	null     = `(null|None|"")`
	// stray may stand after a call in its tag.
	stray = `[ \n\t\r,\]\}]{0,64}`
)

// objects are the forms of a call that is one object.
func (w writing) objects() []grammar.Form {
	all := []grammar.Form{{Style: grammar.JSON, Before: opens, Middle: inner, After: closes, None: without, Null: null}}
	if w.strict {
		return all
	}
	return append(all,
		grammar.Form{Style: grammar.Reversed, Before: `\{` + blanks + `(` + idle + blanks + `,` + blanks + `)*` + keys,
			Middle: blanks + `,` + blanks + `"name"` + blanks + `:` + blanks + `"` + namespace, After: `"` + unclosed + `\}`})
}

// tags are those of parameters.
func (w writing) tags() grammar.Tags {
	switch w.format {
	case MiniMax:
		return grammar.Tags{Open: miniParameter + `"`, Then: `">`, Close: miniParameterEnd, End: miniFunctionEnd, Ends: w.mark(miniCallEnd), Begins: []string{w.mark(miniCall), miniFunction}}
	case DeepSeekV32:
		return grammar.Tags{Open: dsmlParameter + `"`, Then: `" string="false">`, TextThen: `" string="true">`, Close: dsmlParameterEnd, End: dsmlFunctionEnd, Ends: w.mark(dsmlCallEnd), Begins: []string{w.mark(dsmlCall), dsmlFunction}}
	}
	return grammar.Tags{Open: openParameter, Then: ">", Close: closeParameter, End: closeFunction, Ends: w.mark(closeCall), Begins: []string{w.mark(openCall), openFunction}}
}

// pairs are the forms of GLM's calls: GLM-4.7 writes no line ends between the tags.
func (w writing) pairs() (out []grammar.Form) {
	for _, line := range []string{"\n", ""} {
		tags := grammar.Tags{Open: openKey, Then: closeKey + line + openValue, Close: closeValue, End: w.mark(closeCall), Begins: []string{w.mark(openCall)}}
		out = append(out, grammar.Form{Style: grammar.Tagged, Before: namespace, Middle: `\n?`, Tags: tags})
	}
	return out
}

// attributes are calls with names in attributes, of which several may stand in one tag.
func (w writing) attributes() (begin, function string, form grammar.Form, end string) {
	begin, function, end = miniCall, miniFunction, miniCallEnd
	if w.format == DeepSeekV32 {
		begin, function, end = dsmlCall, dsmlFunction, dsmlCallEnd
	}
	return w.mark(begin), function, grammar.Form{Style: grammar.Tagged, Before: grammar.Literal(function) + `"` + namespace, Middle: `">`, Tags: w.tags()}, w.is(end)
}

// headed are the parts of calls with a name and an object: what begins a section and a call,
// the forms of a call without that, and what ends a section.
func (w writing) headed() (section, call string, forms []grammar.Form, end string) {
	m := w.format.Markers()
	sep := w.is(m[3])
	section, call, end = w.mark(m[0]), w.mark(m[2]), w.is(m[1])
	after := blanks + "(" + w.is(m[4]) + ")?"
	forms = []grammar.Form{{Style: grammar.JSON, Before: namespace, Middle: `(:[0-9]{1,6})?` + blanks + sep + blanks, After: after, Null: null,
		None: `(:[0-9]{1,6})?` + blanks + `(` + sep + blanks + `)?` + w.is(m[4])}}
	if w.format != Kimi {
		forms[0].Middle, forms[0].None = blanks+sep+blanks, blanks+`(`+sep+blanks+`)?`+w.is(m[4])
		forms = append(forms, grammar.Form{Style: grammar.JSON, Before: "function" + sep + namespace, Middle: "[ \t\r]{0,8}\n" + blanks + "(```json)?" + blanks, After: blanks + "(```)?" + after})
	}
	return section, call, forms, end
}

// free is text with calls in it.
func (w writing) free(c *grammar.Calls) {
	switch w.format {
	case Hermes, QwenXML:
		end := stray + `(` + w.is(closeCall) + `)?`
		form := grammar.Form{Style: grammar.Tagged, Before: `<function=` + namespace, Middle: `>`, Tags: w.tags()}
		c.Groups = []grammar.Group{{Begin: w.mark(openCall), Chains: []grammar.Chain{
			{Open: blanks + `(\[` + blanks + `)?`, Forms: append(w.objects(), form), Between: stray, End: end}}}}
		if w.format == QwenXML {
			form.Before = namespace
			c.Groups = append(c.Groups, grammar.Group{Begin: openFunction, Chains: []grammar.Chain{{Forms: []grammar.Form{form}, End: end}}})
		}
	case Llama:
		chains := []grammar.Chain{{Open: blanks, Forms: w.objects(), Between: `[ \n\t\r;,]{0,64}`}}
		c.Groups = []grammar.Group{{Begin: w.mark(pythonTag), Chains: chains}}
		for _, f := range c.Functions {
			for _, head := range []string{`{"name": "%s", "parameters": `, `{"name":"%s","parameters":`, `{"type": "function", "name": "%s", "parameters": `, `{"name": "%s", "arguments": `} {
				c.First = append(c.First, grammar.Group{Begin: fmt.Sprintf(head, f.Name), Only: f.Name, Chains: chains})
			}
		}
	case Mistral, MistralNamed:
		head, args := blanks+`(`+w.is(mistralID)+`[A-Za-z0-9]{1,64})?`, w.is(mistralArgs)
		c.Groups = []grammar.Group{{Begin: w.mark(mistralCalls), Chains: []grammar.Chain{
			{Open: blanks, Forms: []grammar.Form{{Style: grammar.JSON, Before: namespace, Middle: head + args + blanks, Null: null}, {Style: grammar.JSON, Before: namespace, Middle: head + blanks}}},
			{Open: blanks, Forms: w.objects()},
			{Open: blanks + `\[` + blanks, Forms: w.objects(), Between: `[ \n\t\r,]{1,64}`, End: `[ \n\t\r,]{0,64}\]?`},
		}}}
	case GLM:
		c.Groups = []grammar.Group{{Begin: w.mark(openCall), Chains: []grammar.Chain{{Open: blanks, Forms: w.pairs()},
			{Open: blanks, Forms: w.objects(), Between: stray, End: stray + `(` + w.is(closeCall) + `)?`}}}}
	case MiniMax, DeepSeekV32:
		begin, function, form, end := w.attributes()
		end = stray + `(` + end + `)?`
		alone := form
		alone.Before = `"` + namespace
		c.Groups = []grammar.Group{{Begin: begin, Chains: []grammar.Chain{{Open: blanks, Forms: []grammar.Form{form}, Between: stray, End: end}}},
			{Begin: function, Chains: []grammar.Chain{{Forms: []grammar.Form{alone}, End: end}}}}
	case Kimi, DeepSeekV3, DeepSeekV31:
		section, call, forms, end := w.headed()
		head := blanks + grammar.Literal(call) + blanks
		c.Groups = []grammar.Group{{Begin: section, Chains: []grammar.Chain{{Open: head, Forms: forms, Between: head, End: blanks + `(` + end + `)?`}}},
			{Begin: call, Chains: []grammar.Chain{{Open: blanks, Forms: forms}}}}
	case Gemma, LFM:
		w.freeBare(c)
	case Harmony:
		w.freeMessages(c)
	}
}

// bare is a call without the quotes of JSON, and the markers around calls.
func (w writing) bare() (begin string, form grammar.Form, end string) {
	if w.format == LFM {
		return w.mark(lfmCalls), grammar.Form{Style: grammar.Bare, Notation: grammar.Notation{Python: true}}, w.is(lfmCallsEnd)
	}
	return w.mark(gemmaCall), grammar.Form{Style: grammar.Bare, Before: "call:", Notation: grammar.Notation{Quote: w.mark(gemmaQuote)}}, w.is(gemmaCallEnd)
}

// freeBare are calls of which several may stand between two markers. The end is required: what
// follows without it may look like another call.
func (w writing) freeBare(c *grammar.Calls) {
	begin, form, end := w.bare()
	open, stray := blanks, `[ \n\t\r\]\}]{0,64}`
	comma := `,` + blanks
	between := stray + `(` + comma + `)?`
	if w.format == LFM {
		open, between = blanks+`(\[`+blanks+`)?`, stray+comma
	}
	form.Before, form.Middle = form.Before+namespace, blanks
	alone := form // a function without arguments
	alone.After, alone.None = stray+end, blanks+end
	c.Groups = []grammar.Group{{Begin: begin, Chains: []grammar.Chain{
		{Open: open, Forms: []grammar.Form{form}, Between: between, End: stray + end},
		{Open: open, Forms: []grammar.Form{alone}},
	}}}
}

// anyHeader is text of a message's header.
const anyHeader = "[^<\ufdd0-\ufdef]*"

// freeMessages are messages of which those to functions are held.
func (w writing) freeMessages(c *grammar.Calls) {
	head := `([ \n\t]` + anyHeader + `)?(` + w.is(harmonyChannel) + anyHeader + `)?`
	open := head + `(` + w.is(harmonyConstrain) + anyHeader + `)?` + w.is(harmonyMessage) + blanks
	word := head + `(` + w.is(harmonyConstrain) + `|[ \n\t])(code|python|text|plain|bash|sh|sql|javascript|js)` + blanks + w.is(harmonyMessage)
	chains := []grammar.Chain{{Forms: []grammar.Form{
		{Style: grammar.JSON, Middle: open, After: `[ \n\t\r\}]{0,16}`, None: open, Null: null},
		{Style: grammar.Code, Middle: word},
		{Style: grammar.Code, Middle: open + "[^\\{ \n\t\r<\ufdd0-\ufdef]"},
	}, End: `(` + w.is(harmonyCall) + `|` + w.is(harmonyEnd) + `|` + w.is(harmonyReturn) + `)`}}
	for _, begin := range []string{w.mark(harmonyChannel) + "commentary to=functions.", w.mark(harmonyChannel) + "analysis to=functions.", w.mark(harmonyStart) + "assistant to=functions."} {
		c.Groups = append(c.Groups, grammar.Group{Begin: begin, Chains: chains})
	}
	c.First = []grammar.Group{{Begin: " to=functions.", Chains: chains}}
}

// forced is calls alone, as the format's templates write them.
func (w writing) forced(c *grammar.Calls) {
	object := grammar.Form{Style: grammar.JSON, Before: `\{"name": "`, Middle: `", "arguments": `, After: `\}`}
	chain := grammar.Chain{Forms: []grammar.Form{object}}
	begin := ""
	switch w.format {
	case Hermes:
		begin, chain.Open, chain.End, c.Between = w.mark(openCall), `\n?`, `\n?`+w.is(closeCall), "\n"
	case QwenXML:
		chain.Forms[0] = grammar.Form{Style: grammar.Tagged, Before: `<function=`, Middle: `>\n?`, Tags: w.tags()}
		begin, chain.Open, chain.End, c.Between = w.mark(openCall), `\n?`, `\n?`+w.is(closeCall), "\n"
	case Llama:
		chain.Forms[0].Middle, c.Many = `", "parameters": `, false
	case Mistral:
		begin, chain.Open, chain.End = w.mark(mistralCalls), ` ?\[`, `\]`
		if c.Many {
			chain.Between = `, `
		}
		c.Many = false
		c.Groups = []grammar.Group{{Begin: begin, Chains: []grammar.Chain{chain}}}
		return
	case MistralNamed:
		begin = w.mark(mistralCalls)
		chain.Forms[0] = grammar.Form{Style: grammar.JSON, Middle: `(` + w.is(mistralID) + `[A-Za-z0-9]{9})?(` + w.is(mistralArgs) + `)?`}
	case GLM:
		begin, chain.Forms, c.Between = w.mark(openCall), w.pairs(), "\n"
		for i := range chain.Forms {
			chain.Forms[i].Before = ""
		}
	case Gemma:
		begin, chain.Forms[0], chain.End = w.bare()
	case LFM:
		begin, chain.Forms[0], chain.End = w.bare()
		chain.Open, chain.End = `\[`, `\]`+chain.End
		if c.Many {
			chain.Between = `, `
		}
		c.Many = false
	case MiniMax, DeepSeekV32, Kimi, DeepSeekV3, DeepSeekV31:
		w.forcedSection(c)
		return
	case Harmony:
		if slices.Contains(w.tokens, harmonyEnd) { // otherwise thoughts and calls cannot be distinguished
			c.Lead = `(` + w.is(harmonyChannel) + `analysis` + w.is(harmonyMessage) + "[^\ufdd0-\ufdef]*" + w.is(harmonyEnd) + w.is(harmonyStart) + `assistant)*`
		}
		c.Final = c.Lead + w.is(harmonyChannel) + `final` + w.is(harmonyMessage)
		chain.Forms[0] = grammar.Form{Style: grammar.JSON, Before: `(` + w.is(harmonyChannel) + `commentary)? to=functions\.`,
			Middle: `(` + w.is(harmonyChannel) + `commentary)? (` + w.is(harmonyConstrain) + `)?json` + w.is(harmonyMessage)}
		chain.End, c.Many = w.is(harmonyCall), false
	}
	c.Groups = []grammar.Group{{Begin: begin, Chains: []grammar.Chain{chain}}}
}

// forcedSection is calls in one tag, or in one section.
func (w writing) forcedSection(c *grammar.Calls) {
	var chain grammar.Chain
	var begin, between string
	if w.format == MiniMax || w.format == DeepSeekV32 {
		tag, function, form, end := w.attributes()
		form.Before, form.Middle = grammar.Literal(function)+`"`, `">\n?`
		begin, between, chain = tag, `\n`, grammar.Chain{Open: `\n?`, Forms: []grammar.Form{form}, End: `\n?` + end}
	} else {
		m := w.format.Markers()
		form := grammar.Form{Style: grammar.JSON, Middle: w.is(m[3]), After: w.is(m[4])}
		switch w.format {
		case Kimi:
			form.Before, form.Middle = `functions\.`, `:[0-9]{1,3}`+w.is(m[3])
		case DeepSeekV3:
			form.Before, form.Middle, form.After = "function"+w.is(m[3]), "\n```json\n", "\n```"+w.is(m[4])
		}
		begin, between = w.mark(m[0]), w.is(m[2])
		chain = grammar.Chain{Open: w.is(m[2]), Forms: []grammar.Form{form}, End: w.is(m[1])}
	}
	if c.Many {
		chain.Between = between
	}
	c.Many = false
	c.Groups = []grammar.Group{{Begin: begin, Chains: []grammar.Chain{chain}}}
}
