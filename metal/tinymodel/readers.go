package tinymodel

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"metalfleet.dev/metalfleet/metal/quant"
)

// Reader is a tiny random model that makes vectors of texts, or scores of
// documents, as a folder of Hugging Face's and sentence-transformers'. Its
// weights depend on the name.
type Reader struct {
	Name string
	// Family is bert, xlm-roberta or qwen3.
	Family string
	// Rerank adds a head with one label, for scores; otherwise the model
	// computes embeddings with this pooling (mean, cls or lasttoken).
	Rerank  bool
	Pooling string
	// Bare leaves out that vectors are normalised.
	Bare bool
	// Identity: scores are the head's logits.
	Identity bool
	// Type of the weights.
	Type quant.Type
	// Tanh is the other form of GELU, Old the names of tensors of old files, and
	// of a model that was saved inside another.
	Tanh, Old bool
	// Prompts by name.
	Prompts map[string]string
	// Size for measurements; the zero value is tiny.
	Size Size
}

// Size of a reader; Vocabulary of its tokenizer is filled up with pieces that no
// text has, or that are merged.
type Size struct{ Hidden, Inner, Heads, Layers, Positions, Vocabulary int }

// size is that of the reader: tiny where nothing is said.
func (r Reader) size() Size {
	if r.Size == (Size{}) {
		return Size{Hidden: readerHidden, Inner: readerInner, Heads: readerHeads, Layers: readerLayers, Positions: readerPositions}
	}
	return r.Size
}

// limit is how many tokens of a text are read: of a tiny one less than it has
// positions for.
func (r Reader) limit() int {
	if r.Size == (Size{}) {
		return readerLimit
	}
	return r.Size.Positions
}

// filled appends word pieces up to the size of the vocabulary.
func (r Reader) filled(tokens []string, prefix string) []string {
	for len(tokens) < r.Size.Vocabulary {
		tokens = append(tokens, fmt.Sprintf("%sq%06dq", prefix, len(tokens)))
	}
	return tokens
}

// Readers lists those that test/oracle/goldens/readers records and metal/embed compares.
func Readers() []Reader {
	return []Reader{
		{Name: "bert mean", Family: "bert", Pooling: "mean"},
		{Name: "bert cls, old names, bfloat16", Family: "bert", Pooling: "cls", Bare: true, Type: quant.BFloat16, Tanh: true, Old: true},
		{Name: "bert rerank", Family: "bert", Rerank: true},
		{Name: "bert rerank, identity, float16", Family: "bert", Rerank: true, Identity: true, Type: quant.Float16},
		{Name: "xlm-roberta cls", Family: "xlm-roberta", Pooling: "cls", Prompts: map[string]string{"query": "find: "}},
		{Name: "xlm-roberta mean, bfloat16", Family: "xlm-roberta", Pooling: "mean", Type: quant.BFloat16},
		{Name: "xlm-roberta rerank", Family: "xlm-roberta", Rerank: true},
		{Name: "qwen3 embed", Family: "qwen3", Pooling: "lasttoken", Prompts: map[string]string{
			"query": "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:", "document": "",
		}},
		{Name: "qwen3 rerank", Family: "qwen3", Rerank: true, Type: quant.BFloat16},
	}
}

// ReaderTexts are the inputs; the first is the query of a reranker, the others
// its documents. One is longer than the encoders' context.
func ReaderTexts() []string {
	return []string{
		"Where does a man eat?", "A man is eating food.", "", "Paris, the capital of France: 42 caf\u00e9s!", "\u6771\u4eac x",
		strings.Repeat("the man is eating bread and 17 of the cats ", 4), strings.Repeat("z", 150),
	}
}

const (
	readerHidden, readerInner, readerHeads, readerLayers = 64, 128, 4, 2
	readerPositions                                      = 64
	// readerLimit is less than there are positions.
	readerLimit = 40
)

// Write writes the folder, which must not exist yet.
func (r Reader) Write(dir string) error {
	if r.Family == "qwen3" {
		return r.writeQwen(dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write tiny model: %w", err)
	}
	tokens := r.filled(wordPieces(), "")
	tokenizer := r.wordPiece(tokens)
	if r.Family == "xlm-roberta" {
		tokens = r.filled(unigrams(), metaspace)
		tokenizer = r.unigram(tokens)
	}
	files := map[string]any{
		"config.json": r.config(len(tokens)), "tokenizer.json": tokenizer,
		"tokenizer_config.json": map[string]any{"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": r.size().Positions, "model_input_names": r.inputs(),
			"pad_token": tokens[r.padding()], "cls_token": tokens[r.special()[0]], "sep_token": tokens[r.special()[1]], "unk_token": tokens[r.special()[2]]},
	}
	if err := r.writeFiles(dir, files); err != nil {
		return err
	}
	var parts []part
	for _, t := range r.tensors(len(tokens)) {
		p, err := t.parts(quant.DenseOf(r.Type), 11)
		if err != nil {
			return err
		}
		p[0].name = r.saved(p[0].name)
		parts = append(parts, p...)
	}
	return writeShards(dir, "pt", shards(parts, 0))
}

// writeFiles writes the files next to the weights.
func (r Reader) writeFiles(dir string, files map[string]any) error {
	module := func(i int, path, kind string) map[string]any {
		return map[string]any{"idx": i, "name": fmt.Sprint(i), "path": path, "type": kind}
	}
	files["sentence_bert_config.json"] = map[string]any{"max_seq_length": r.limit(), "do_lower_case": false}
	const models = "sentence_transformers.models."
	switch {
	case r.Rerank && r.Family == "qwen3":
		files["modules.json"] = []any{module(0, "", "sentence_transformers.base.modules.transformer.Transformer"),
			module(1, "1_LogitScore", "sentence_transformers.cross_encoder.modules.logit_score.LogitScore")}
		files["1_LogitScore/config.json"] = map[string]any{"true_token_id": readerYes, "false_token_id": readerNo}
		delete(files, "sentence_bert_config.json")
	case r.Rerank: // a cross-encoder of old has no modules
		delete(files, "sentence_bert_config.json")
	default:
		modules := []any{module(0, "", models+"Transformer"), module(1, "1_Pooling", models+"Pooling")}
		if !r.Bare {
			modules = append(modules, module(2, "2_Normalize", models+"Normalize"))
		}
		files["modules.json"] = modules
		pooling := map[string]any{"word_embedding_dimension": r.size().Hidden}
		for _, mode := range []string{"cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"} {
			pooling["pooling_mode_"+mode] = mode == map[string]string{"cls": "cls_token", "mean": "mean_tokens", "lasttoken": "lasttoken"}[r.Pooling]
		}
		files["1_Pooling/config.json"] = pooling
		prompts := map[string]any{"prompts": map[string]string{}, "default_prompt_name": nil, "similarity_fn_name": "cosine"}
		if r.Prompts != nil {
			prompts["prompts"] = r.Prompts
		}
		files["config_sentence_transformers.json"] = prompts
	}
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("write tiny model: %w", err)
		}
		if err := writeJSON(path, content); err != nil {
			return err
		}
	}
	return nil
}

// inputs are the tokenizer's outputs: XLM-RoBERTa's has no token types, even if
// its template has.
func (r Reader) inputs() []string {
	if r.Family == "xlm-roberta" {
		return []string{"input_ids", "attention_mask"}
	}
	return []string{"input_ids", "token_type_ids", "attention_mask"}
}

func (r Reader) padding() int {
	if r.Family == "xlm-roberta" {
		return 1
	}
	return 0
}

// special are the tokens that begin and end a text, and stand for what is not
// known.
func (r Reader) special() [3]int {
	if r.Family == "xlm-roberta" {
		return [3]int{0, 2, 3}
	}
	return [3]int{2, 3, 1}
}

func (r Reader) config(vocabulary int) map[string]any {
	size := r.size()
	class, positions, types := map[bool]string{false: "BertModel", true: "BertForSequenceClassification"}[r.Rerank], size.Positions, 2
	if r.Family == "xlm-roberta" {
		class, positions, types = map[bool]string{false: "XLMRobertaModel", true: "XLMRobertaForSequenceClassification"}[r.Rerank], size.Positions+2, 1
	}
	out := map[string]any{
		"architectures": []string{class}, "model_type": r.Family, "hidden_size": size.Hidden, "intermediate_size": size.Inner,
		"num_attention_heads": size.Heads, "num_hidden_layers": size.Layers, "vocab_size": vocabulary, "max_position_embeddings": positions,
		"type_vocab_size": types, "layer_norm_eps": 1e-5, "hidden_act": "gelu", "pad_token_id": r.padding(), "position_embedding_type": "absolute",
		"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "dtype": r.Type.String(),
	}
	if r.Tanh {
		out["hidden_act"] = "gelu_new"
	}
	if r.Rerank {
		out["id2label"], out["label2id"] = map[string]string{"0": "LABEL_0"}, map[string]int{"LABEL_0": 0}
		if r.Identity {
			out["sentence_transformers"] = map[string]any{"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.0.0"}
		}
	}
	return out
}

// tensors of an encoder, which the family's other names are made of by saved.
func (r Reader) tensors(vocabulary int) []tensor {
	var out []tensor
	size := r.size()
	dense := func(path string, rows, cols int, gain float64) {
		out = append(out, matrix(path, "", rows, cols, gain), tensor{path: path, cols: rows, values: values{std: 0.3}, bias: true})
	}
	norm := func(path string) {
		out = append(out, tensor{path: path, cols: size.Hidden, values: values{mean: 1, std: 0.2}}, tensor{path: path, cols: size.Hidden, values: values{std: 0.2}, bias: true})
	}
	positions, types := size.Positions, 2
	if r.Family == "xlm-roberta" {
		positions, types = size.Positions+2, 1
	}
	out = append(out, matrix("embeddings.word_embeddings", "", vocabulary, size.Hidden, 8),
		matrix("embeddings.position_embeddings", "", positions, size.Hidden, 4), matrix("embeddings.token_type_embeddings", "", types, size.Hidden, 4))
	norm("embeddings.LayerNorm")
	for i := range size.Layers {
		at := fmt.Sprintf("encoder.layer.%d.", i)
		dense(at+"attention.self.query", size.Hidden, size.Hidden, 2)
		dense(at+"attention.self.key", size.Hidden, size.Hidden, 2)
		dense(at+"attention.self.value", size.Hidden, size.Hidden, 1)
		dense(at+"attention.output.dense", size.Hidden, size.Hidden, 1)
		norm(at + "attention.output.LayerNorm")
		dense(at+"intermediate.dense", size.Inner, size.Hidden, 1)
		dense(at+"output.dense", size.Hidden, size.Inner, 1)
		norm(at + "output.LayerNorm")
	}
	switch {
	case r.Family == "bert": // its class has a pooler, whether or not it is used
		dense("pooler.dense", size.Hidden, size.Hidden, 1)
		if r.Rerank {
			dense("classifier", 1, size.Hidden, 2)
		}
	case r.Rerank:
		dense("classifier.dense", size.Hidden, size.Hidden, 1)
		dense("classifier.out_proj", 1, size.Hidden, 2)
	}
	return out
}

// saved is the name of a tensor in the file.
func (r Reader) saved(name string) string {
	inside := map[string]string{"bert": "bert.", "xlm-roberta": "roberta."}[r.Family]
	if (r.Rerank || r.Old) && !strings.HasPrefix(name, "classifier") {
		name = inside + name
	}
	if r.Old && strings.Contains(name, "LayerNorm") {
		name = strings.NewReplacer("LayerNorm.weight", "LayerNorm.gamma", "LayerNorm.bias", "LayerNorm.beta").Replace(name)
	}
	return name
}

// alphabet is what both tokenizers are made of.
const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789.,:!?-'"

func readerWords() []string {
	return []string{"the", "man", "is", "eat", "food", "bread", "paris", "capital", "of", "france", "cats", "and", "find"}
}

func wordPieces() []string {
	out := append([]string{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}, readerWords()...)
	for _, c := range alphabet {
		out = append(out, string(c), "##"+string(c))
	}
	return append(out, "##ing", "##es")
}

// added declares special tokens.
func added(tokens []string, n int) []any {
	var out []any
	for id, text := range tokens[:n] {
		out = append(out, map[string]any{"id": id, "content": text, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
	}
	return out
}

// around is a post-processor of one text and of two.
func around(tokens []string, single, pair []any, ids ...int) map[string]any {
	special := map[string]any{}
	for _, id := range ids {
		special[tokens[id]] = map[string]any{"id": tokens[id], "ids": []int{id}, "tokens": []string{tokens[id]}}
	}
	return map[string]any{"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}
}

func ofText(name string, kind int) any {
	return map[string]any{"Sequence": map[string]any{"id": name, "type_id": kind}}
}

func ofToken(text string, kind int) any {
	return map[string]any{"SpecialToken": map[string]any{"id": text, "type_id": kind}}
}

func (r Reader) wordPiece(tokens []string) map[string]any {
	ids := map[string]int{}
	for id, text := range tokens {
		ids[text] = id
	}
	cls, sep := tokens[2], tokens[3]
	one := []any{ofToken(cls, 0), ofText("A", 0), ofToken(sep, 0)}
	return map[string]any{
		"version": "1.0", "truncation": map[string]any{"max_length": 9, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}, "padding": nil,
		"added_tokens":   added(tokens, 5),
		"normalizer":     map[string]any{"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": nil, "lowercase": true},
		"pre_tokenizer":  map[string]any{"type": "BertPreTokenizer"},
		"post_processor": around(tokens, one, append(one[:3:3], ofText("B", 1), ofToken(sep, 1)), 2, 3),
		"decoder":        map[string]any{"type": "WordPiece", "prefix": "##", "cleanup": true},
		"model":          map[string]any{"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": ids},
	}
}

// metaspace stands for a blank in unigrams.
const metaspace = "\u2581"

func unigrams() []string {
	out := []string{"<s>", "<pad>", "</s>", "<unk>", metaspace}
	for _, w := range readerWords() {
		out = append(out, metaspace+w)
	}
	for _, c := range alphabet {
		out = append(out, string(c))
	}
	return append(out, "ing", "es")
}

func (r Reader) unigram(tokens []string) map[string]any {
	var vocab []any
	for id, text := range tokens {
		score := 0.0
		if id > 3 {
			score = -2 - float64(id)/16 - 2/float64(len(text))
		}
		vocab = append(vocab, []any{text, score})
	}
	cls, sep := tokens[0], tokens[2]
	one := []any{ofToken(cls, 0), ofText("A", 0), ofToken(sep, 0)}
	space := func(kind string) map[string]any {
		return map[string]any{"type": kind, "replacement": metaspace, "prepend_scheme": "always", "split": true}
	}
	return map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": added(tokens, 4),
		"normalizer": map[string]any{"type": "Lowercase"}, "pre_tokenizer": space("Metaspace"),
		"post_processor": around(tokens, one, append(one[:3:3], ofToken(sep, 0), ofText("B", 1), ofToken(sep, 1)), 0, 2),
		"decoder":        space("Metaspace"),
		"model":          map[string]any{"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": false},
	}
}

// The tokens that a tiny Qwen3-Reranker answers with.
const readerYes, readerNo = 450, 451

// writeQwen writes a tiny Qwen3 and makes a reader of it.
func (r Reader) writeQwen(dir string) error {
	c := Default()
	c.Family, c.Hidden, c.FeedForward, c.QueryHeads, c.KVHeads, c.HeadSize, c.Layers = Qwen3, readerHidden, readerInner, readerHeads, 2, 32, readerLayers
	c.Name, c.Seed, c.NormSpread, c.Context = "tiny "+r.Name, 12, 0.5, 1024
	if z := r.Size; z != (Size{}) {
		c.Hidden, c.FeedForward, c.QueryHeads, c.HeadSize, c.Layers = z.Hidden, z.Inner, z.Heads, z.Hidden/z.Heads, z.Layers
		c.Context, c.Vocabulary, c.Merged = z.Positions, z.Vocabulary, !r.Rerank // whose two words stand among the reserved
	}
	if err := WriteFolder(dir, c, Layout{Matrices: quant.DenseOf(r.Type), Bare: !r.Rerank, Modern: true}); err != nil {
		return err
	}
	path := filepath.Join(dir, "tokenizer.json")
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("write tiny model: %w", err)
	}
	var tokenizer map[string]any
	if err := json.Unmarshal(b, &tokenizer); err != nil {
		return fmt.Errorf("write tiny model: %w", err)
	}
	if r.Rerank {
		ids := tokenizer["model"].(map[string]any)["vocab"].(map[string]any)
		for id, text := range map[int]string{readerYes: "yes", readerNo: "no"} {
			delete(ids, reserved(id))
			ids[text] = id
		}
	} else {
		tokens := []string{"<|endoftext|>"}
		one := []any{ofText("A", 0), ofToken(tokens[0], 0)}
		tokenizer["post_processor"] = around(tokens, one, append(one[:2:2], ofText("B", 0), ofToken(tokens[0], 0)), 0)
	}
	files := map[string]any{"tokenizer.json": tokenizer}
	if err := r.writeFiles(dir, files); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(dir, "sentence_bert_config.json"))
}
