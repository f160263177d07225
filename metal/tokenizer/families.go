package tokenizer

// preTokenizer is how one family reads text before byte-level BPE, by the name
// that GGUF has for it.
type preTokenizer struct {
	name string
	// build makes the steps, as the family's tokenizer.json has them.
	build func(*preTokenizing) error
	nfc   bool // composes the text first
	whole bool // takes a piece that is a token as that token
}

// preTokenizers lists what is known, in order of names.
func preTokenizers() []preTokenizer {
	return []preTokenizer{
		{name: "command-r", build: digitsThenGPT2, nfc: true},
		{name: "deepseek-coder", build: isolate(breakPattern, `\s?\p{L}+`, `\s?\p{P}+`, asianPattern(), `\p{N}`)},
		{name: "deepseek-llm", build: isolate(breakPattern, `\s?`+set(deepseekLetters)+"+", `\s?`+set(deepseekMarks)+"+", `\s+$`, asianPattern(), `\p{N}`)},
		{name: "deepseek-v3", build: isolate(`\p{N}{1,3}`, set(chineseAndKana)+"+", deepseek3Pattern)},
		{name: "falcon", build: falcon},
		{name: "gpt-2", build: gpt2},
		{name: "gpt-4o", build: isolate(o200kPattern)},
		{name: "llama-bpe", build: isolate(llama3Pattern), whole: true},
		{name: "mpt", build: gpt2, nfc: true},
		{name: "qwen2", build: isolate(qwen2Pattern), nfc: true},
		{name: "qwen35", build: isolate(qwen35Pattern)},
		{name: "refact", build: digitsThenGPT2},
		{name: "smollm", build: digitsThenGPT2},
		{name: "starcoder", build: digitsThenGPT2},
		{name: "tekken", build: isolate(tekkenPattern), whole: true},
	}
}

// isolate cuts out the matches of each expression, then takes bytes.
func isolate(exprs ...string) func(*preTokenizing) error {
	return func(p *preTokenizing) error {
		for _, expr := range exprs {
			find, err := p.c.finder(expr)
			if err != nil {
				return err
			}
			p.then(behaving(find, isolated, false))
		}
		p.bytes = true
		return nil
	}
}

func gpt2(p *preTokenizing) error {
	p.then(isolating(p.c.gpt2()))
	p.bytes = true
	return nil
}

func digitsThenGPT2(p *preTokenizing) error {
	p.then(behaving(eachRune(newNumeric()), isolated, false))
	return gpt2(p)
}

// falcon looks for digits in what stands for bytes: the reference does.
func falcon(p *preTokenizing) error {
	p.then(behaving(eachRune(newPunctuation()), contiguous, false))
	if err := gpt2(p); err != nil {
		return err
	}
	p.then(behaving(eachRune(newNumeric()), contiguous, false))
	return isolate(`[0-9][0-9][0-9]`)(p)
}
