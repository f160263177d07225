package main

import (
	"fmt"
	"strings"

	"metalfleet.dev/metalfleet/metal/arch"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/weights"
)

// known are words for families; one that has none stands under its name alone.
func known(family string) string {
	return map[string]string{
		"bert":        "BERT and its kin: vectors, scores of pairs",
		"gemma3_text": "Gemma 3 without its eyes",
		"gpt_oss":     "GPT-OSS",
		"llama":       "Llama 2 and 3, SmolLM2, Mistral; Mistral Small 3 and Ministral 3, without their eyes",
		"qwen2":       "Qwen2 and 2.5",
		"qwen3":       "Qwen3, dense; Qwen3-Embedding and Qwen3-Reranker",
		"qwen3_5":     "Qwen3.5, without its eyes",
		"qwen3_moe":   "Qwen3 with experts",
		"qwen3_next":  "Qwen3-Next",
		"xlm-roberta": "XLM-RoBERTa: vectors, scores of pairs",
	}[family]
}

// page is the whole text, from the tree at root.
func page(root string) (string, error) {
	records, err := readRecords(root)
	if err != nil {
		return "", err
	}
	speeds, err := readSpeeds(root)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("# Models\n\nWritten by `make docs-models` from the code's own tables and records; a test fails when it is stale. How each figure\n" +
		"comes about stands in [engine.md](engine.md) and [bench](bench/engine.md).\n\n## Families\n\n" +
		"| family | models | GGUF | Hugging Face | MLX |\n|---|---|---|---|---|\n")
	for _, family := range arch.Supported() {
		f := records.formats(family)
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", family, known(family), cell(f["gguf"]), cell(f["hf"]), cell(f["mlx"]))
	}
	b.WriteString("\nFormats are those in which a family was compared with a reference; no format below is bound to a family.\n\n" +
		"## References\n\n| family | reference | files compared | tolerance, of the largest number | record |\n|---|---|---|---|---|\n")
	for _, family := range arch.Supported() {
		for _, r := range records.of(family) {
			fmt.Fprintf(&b, "| `%s` | %s | %d | %s | `%s` |\n", family, r.reference, r.files, r.tolerance, r.where)
		}
	}
	b.WriteString("\nA second, larger tolerance is for types of GGUF that are quantised again.\n")
	b.WriteString("\n## Formats\n\n" + formats())
	b.WriteString("\n## Speed seen\n\nMedians of the records; the machine makes the difference, so each line names it.\n\n" +
		"| family | model | machine and back end | what | seen | a peer beside it |\n|---|---|---|---|---|---|\n")
	for _, family := range arch.Supported() {
		for _, s := range speeds[family] {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", family, s.model, s.machine, s.what, s.seen, s.peer)
		}
	}
	return b.String(), nil
}

func cell(values []string) string {
	if len(values) == 0 {
		return "–"
	}
	return strings.Join(values, ", ")
}

// formats are the two tables of what weights are stored as.
func formats() string {
	var b strings.Builder
	b.WriteString("| GGUF type | bits a weight in the file | held as | bits held | values |\n|---|---|---|---|---|\n")
	const whole = 256 // elements of whole blocks in every type
	for _, t := range weights.Types() {
		f, err := t.Format()
		if err != nil {
			continue // Types lists what has a format; a test wants each on the page
		}
		bytes, _ := t.RowBytes(whole)
		sizes, _ := f.Sizes(whole)
		values := "kept"
		if !t.Exact() {
			values = "quantised again; the log and `engine inspect` say how far they move"
		}
		fmt.Fprintf(&b, "| %v | %s | %v | %s | %s |\n", t, bits(int(bytes)), f, bits(sizes.Sum()), values)
	}
	fmt.Fprintf(&b, "\n| folders | formats |\n|---|---|\n| floats | float32, float16, bfloat16 |\n| affine | %s bits in groups of %s, scales in any of these floats |\n", list(quant.Bits()), list(quant.Groups()))
	for _, f := range quant.BlockFloats() {
		fmt.Fprintf(&b, "| small floats | %v: %d bits in groups of %d |\n", f, f.Bits, f.Group)
	}
	return b.String()
}

// bits a weight takes, of 256.
func bits(bytes int) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", float64(bytes)*8/256), "0"), ".")
}

func list(values []int) string {
	var out []string
	for _, v := range values {
		out = append(out, fmt.Sprint(v))
	}
	return strings.Join(out, ", ")
}
