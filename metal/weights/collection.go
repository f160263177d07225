package weights

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/folder"
	"metalfleet.dev/metalfleet/metal/quant"
)

const (
	configFile = "config.json"
	indexFile  = "model.safetensors.index.json"
	// maxIndexBytes bounds the index; each tensor takes about 100 bytes of it.
	maxIndexBytes = 64 << 20
	maxShards     = 1024
)

// collection is what the safetensors files of a folder hold together.
type collection struct {
	names   []string // of the files, in order
	sources []*os.File
	bytes   int64
	tensors map[string]shardTensor
	left    *allowance
	// latents are the matrices that were cut out of quantised ones, by path.
	latents map[string]Entry
	// unread are the bytes of tensors that a decoder does not have.
	unread int64
}

func (c *collection) close() {
	for _, s := range c.sources {
		s.Close()
	}
}

// folderFault is a fault of a model folder under the sentinel that callers of
// this package branch on.
type folderFault struct{ kind, err error }

func (f *folderFault) Error() string   { return f.err.Error() }
func (f *folderFault) Unwrap() []error { return []error{f.kind, f.err} }

func folderError(err error) error {
	if errors.Is(err, folder.ErrMissing) {
		return &folderFault{ErrMissing, err}
	}
	return &folderFault{ErrInvalid, err}
}

// openCollection opens every safetensors file of a model and reads its header. The
// tensors decide which model it is: an index may be of another build of it (mlx-lm reads
// none, transformers none of a model in one file).
func openCollection(dir *folder.Folder, memory *account) (*collection, error) {
	all, err := dir.Names(".safetensors")
	if err != nil {
		return nil, folderError(err)
	}
	names := slices.DeleteFunc(all, func(n string) bool { return !strings.HasPrefix(n, "model") })
	if len(names) == 0 {
		return nil, fmt.Errorf("%w: folder %s has a config.json but no model*.safetensors", ErrNoModel, dir.Path())
	}
	if len(names) > maxShards {
		return nil, family.Invalidf("found %d weight files, want at most %d", len(names), maxShards)
	}
	c := &collection{names: names, tensors: map[string]shardTensor{}, left: newAllowance(memory)}
	for _, n := range names {
		if err := c.add(dir, n); err != nil {
			c.close()
			return nil, fmt.Errorf("%s: %w", n, err)
		}
	}
	return c, nil
}

// add reads one file and enters its tensors.
func (c *collection) add(dir *folder.Folder, name string) error {
	f, err := dir.File(name)
	if err != nil {
		return folderError(err)
	}
	at := len(c.sources)
	c.sources = append(c.sources, f)
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("size: %w", err)
	}
	c.bytes += st.Size()
	tensors, err := readShard(f, st.Size(), c.left)
	if err != nil {
		return err
	}
	for _, t := range tensors {
		if before, twice := c.tensors[t.name]; twice {
			return family.Invalidf("tensor %s is also in %s: they belong to two builds of the model; copy one build into a folder of its own", family.Quoted(t.name), c.names[before.span.file])
		}
		t.span.file = at
		c.tensors[t.name] = t
	}
	return nil
}

// explainMissing adds to a fault which of the files in the folder's index are not there, if
// tensors are missing. An index that cannot be read adds nothing.
func (c *collection) explainMissing(dir *folder.Folder, memory *account, err error) error {
	if !dir.Has(indexFile) {
		return err
	}
	index, unread := readIndex(dir, memory)
	if unread != nil || !errors.Is(err, ErrMissing) && len(index) <= len(c.tensors) {
		return err
	}
	absent, names := map[string]bool{}, map[string]bool{}
	for _, name := range c.names {
		names[name] = true
	}
	for _, name := range index {
		if !names[name] {
			absent[name] = true
		}
	}
	if len(absent) == 0 {
		return err
	}
	return fmt.Errorf("%w; %s lists %d files that the folder does not have, such as %s: %w", err, indexFile, len(absent), family.Quoted(sortedKeys(absent)[0]), ErrMissing)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// inventory finds every tensor of the family, quantised or not, and refuses
// tensors that the family would ignore, but for those that mlx-lm drops too.
func (c *collection) inventory(d family.Dimensions, cfg *family.Config) (map[string]Entry, error) {
	groups, err := c.plain(d, cfg)
	if err != nil {
		return nil, err
	}
	together, err := c.published(d)
	if err != nil {
		return nil, err
	}
	tied, err := c.tied(d, cfg)
	if err != nil {
		return nil, err
	}
	slots, err := c.slots(d)
	if err != nil {
		return nil, err
	}
	if together {
		slots = paired(slots)
	}
	entries, used := map[string]Entry{}, map[string]bool{}
	for _, s := range slots {
		if s.GGUFOnly || tied && s.Path == headPath {
			continue
		}
		if e, ok := c.latents[s.Path]; ok {
			entries[s.Path] = e
			continue
		}
		if _, ok := c.tensors[s.Path]; s.Optional && !ok && s.Path != headPath {
			continue
		}
		e, err := c.entry(s, groups)
		if err != nil {
			return nil, err
		}
		entries[s.Path] = e
		used[s.Path] = true
		if err := c.useExperts(used, s.Path, len(e.stack)); err != nil {
			return nil, err
		}
		if e.Format.Quantized() {
			used[layerOf(s.Path)+".scales"], used[layerOf(s.Path)+".biases"] = true, !e.Format.BlockFloat()
		}
	}
	var extra []string
	drafts := d.Layout().Drafts
	for name := range c.tensors {
		if !used[name] && !dropped(name, tied) && !(drafts && pastLast(name, d.Layers)) && !lent(name, d) {
			extra = append(extra, name)
		}
	}
	if len(extra) > 0 {
		return nil, unknownTensors(extra, d)
	}
	return entries, nil
}

// slots are those of the decoder.
func (c *collection) slots(d family.Dimensions) ([]family.Slot, error) {
	slots, err := d.Slots(len(c.tensors) + len(c.latents))
	if err != nil {
		return nil, err
	}
	return slots, c.left.memory.take(slotMemory*int64(len(slots)), 0)
}

// useExperts enters the paths of single experts.
func (c *collection) useExperts(used map[string]bool, of string, experts int) error {
	for i := range experts {
		path := expertPath(of, i)
		if err := c.left.memory.take(keyMemory+int64(len(path)), 0); err != nil {
			return err
		}
		used[path] = true
	}
	return nil
}

// plain names all tensors, and the layers of the grouping that it returns, as
// they are called where nothing is around them.
func (c *collection) plain(d family.Dimensions, cfg *family.Config) (grouping, error) {
	groups, err := groupingOf(cfg)
	if err != nil {
		return groups, err
	}
	if cfg.Wrapped() || d.Layout().Unwrap {
		if err := c.unwrapModel(d); err != nil {
			return groups, err
		}
		if groups, err = groups.unwrap(c.left.memory); err != nil {
			return groups, err
		}
	}
	if d.Encoder == nil {
		if err := c.decoder(d, &groups); err != nil {
			return groups, err
		}
		return groups, c.foreign()
	}
	if err := c.encoderNames(d); err != nil {
		return groups, err
	}
	return groups, c.foreign()
}

const headPath = "lm_head.weight"

func layerOf(path string) string { return strings.TrimSuffix(path, ".weight") }

// dropped are the tensors that mlx-lm's sanitize drops (models/llama.py,
// 0.32.2): frequencies that follow from the configuration, and the copy of a
// tied head, which may be quantized (models/helium.py never reads it).
func dropped(name string, tied bool) bool {
	copies := []string{headPath, "lm_head.scales", "lm_head.biases"}
	return strings.Contains(name, "self_attn.rotary_emb.inv_freq") || tied && slices.Contains(copies, name)
}

// pastLast reports whether a tensor belongs to a layer past the last. Where the family
// has drafts, that guesses several tokens at once (mlx-lm drops them too).
func pastLast(name string, layers int) bool {
	rest, ok := strings.CutPrefix(name, "model.layers.")
	number, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(number)
	return ok && err == nil && n >= layers
}

// lent reports whether a tensor makes keys or values in a layer that reads those of
// another (mlx-lm drops them too).
func lent(name string, d family.Dimensions) bool {
	rest, ok := strings.CutPrefix(name, "model.layers.")
	number, rest, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n < 0 || n >= len(d.Lenders) || d.Lenders[n] == n {
		return false
	}
	return slices.ContainsFunc([]string{"self_attn.k_proj.", "self_attn.v_proj.", "self_attn.k_norm."}, func(p string) bool { return strings.HasPrefix(rest, p) })
}

// tied says whether the embedding is the head: as config.json says, and where
// it does not, if there is no head. (There mlx-lm takes a Llama as tied and
// drops a head; transformers takes it as untied. A head that is a copy gives
// the same either way.) A family may always use its head: transformers does not tie a
// head that differs from the embedding, and mlx-lm does not read the key there.
func (c *collection) tied(d family.Dimensions, cfg *family.Config) (bool, error) {
	tied, known, err := cfg.Tied()
	if _, has := c.tensors[headPath]; err == nil && (!known || has && d.Layout().Headed) {
		tied = !has
	}
	return tied, err
}

// decoder names the tensors as those of a decoder.
func (c *collection) decoder(d family.Dimensions, groups *grouping) error {
	if err := c.unwrap(); err != nil {
		return err
	}
	c.ignore(d.Layout().Ignored)
	if err := c.rename(d.Layout().Rename, groups); err != nil {
		return err
	}
	if err := c.split(d, groups); err != nil {
		return err
	}
	if err := c.latent(d, *groups); err != nil {
		return err
	}
	if d.Layout().Blocks {
		return nil
	}
	return c.fusedExperts(d)
}

// unwrap names the tensors of a decoder that was saved without its head, as
// Qwen3-Embedding is, as if it stood in a model: "layers.0." is
// "model.layers.0.". mlx-lm does not load such folders, transformers does.
func (c *collection) unwrap() error {
	if _, bare := c.tensors["embed_tokens.weight"]; !bare {
		return nil
	}
	return c.nameBy(func(name string, _ *shardTensor) (string, bool, error) {
		if name != headPath {
			name = "model." + name
		}
		return name, true, nil
	})
}

// foreign refuses models that hold more than a decoder, by the names that
// their tensors have.
func (c *collection) foreign() error {
	var found []string
	for name := range c.tensors {
		for _, prefix := range []string{"language_model.", "model.language_model.", "vision_tower.", "vision_model.", "visual.", "model.visual.", "multi_modal_projector.", "audio_tower."} {
			if strings.HasPrefix(name, prefix) {
				found = append(found, prefix)
			}
		}
	}
	if len(found) == 0 {
		return nil
	}
	return family.Unsupported("a part of the model", slices.Min(found), []string{"model.", "lm_head."})
}

// named reports whether a name has this part; every folder has an empty one.
func (c *collection) named(part string) bool {
	if part == "" {
		return true
	}
	for name := range c.tensors {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// entry is the tensor of a slot.
func (c *collection) entry(s family.Slot, groups grouping) (Entry, error) {
	layer := layerOf(s.Path)
	t, ok := c.tensors[s.Path]
	if _, apart := c.tensors[expertPath(s.Path, 0)]; !ok && apart && len(s.Shape) == 3 {
		return c.stacked(s)
	}
	if !ok {
		return Entry{}, fmt.Errorf("tensor %s: %w", s.Path, ErrMissing)
	}
	if s.AnyDims && elementsOf(t.shape) == s.Shape[0] {
		t.shape = s.Shape
	}
	e := Entry{Path: s.Path, Name: s.Path, Shape: s.Shape, Bytes: t.span.bytes, weight: t.span}
	scales, quantized := c.tensors[layer+".scales"]
	if !quantized {
		if l, named, err := groups.of(layer); err != nil || named && l.bits != 0 {
			return Entry{}, errors.Join(err, fmt.Errorf("tensor %s.scales of a layer that config.json lists as quantised: %w", layer, ErrMissing))
		}
		if !slices.Equal(t.shape, s.Shape) {
			return Entry{}, family.Invalidf("tensor %s has shape %v, want %v", s.Path, t.shape, s.Shape)
		}
		kind, err := t.kind.float()
		if err != nil {
			return Entry{}, fmt.Errorf("tensor %s: %w", s.Path, err)
		}
		e.Format = quant.DenseOf(kind)
		e.stored = e.Format.String()
		return e, nil
	}
	if smallFloats(scales) {
		return c.blockEntry(e, groups, t, scales)
	}
	biases, ok := c.tensors[layer+".biases"]
	if !ok {
		return Entry{}, fmt.Errorf("tensor %s.biases, required with its scales: %w", layer, ErrMissing)
	}
	leading := len(s.Shape) - 1
	if leading < 1 || len(t.shape) != len(s.Shape) || !slices.Equal(t.shape[:leading], s.Shape[:leading]) {
		return Entry{}, family.Invalidf("quantised tensor %s has shape %v, want words of shape %v", s.Path, t.shape, s.Shape)
	}
	for _, part := range []shardTensor{scales, biases} {
		if len(part.shape) != len(s.Shape) || !slices.Equal(part.shape[:leading], s.Shape[:leading]) {
			return Entry{}, family.Invalidf("%s has words of shape %v, scales of shape %v and biases of shape %v", family.Quoted(layer), t.shape, scales.shape, biases.shape)
		}
	}
	var err error
	if e.Format, err = groups.quantized(layer, s.Shape[leading], t.flat(), scales.flat(), biases.flat()); err != nil {
		return Entry{}, err
	}
	e.scales, e.biases = scales.span, biases.span
	e.Bytes += scales.span.bytes + biases.span.bytes
	e.stored = e.Format.String()
	return e, nil
}

func elementsOf(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// expertPath is the path of one expert's matrix in Hugging Face's layout, which
// keeps them apart.
func expertPath(path string, expert int) string {
	for _, head := range []string{".embed_q.", ".unembed_out."} {
		path = strings.Replace(path, head, fmt.Sprintf("%s%d.", head, expert), 1)
	}
	return strings.Replace(path, ".switch_mlp.", fmt.Sprintf(".experts.%d.", expert), 1)
}

// stacked is the tensor of a slot whose experts are separate tensors. They are
// dense as trained: tools stack experts before they quantize them.
func (c *collection) stacked(s family.Slot) (Entry, error) {
	e := Entry{Path: s.Path, Name: expertPath(s.Path, 0), Shape: s.Shape}
	for i := range s.Shape[0] {
		path := expertPath(s.Path, int(i))
		t, ok := c.tensors[path]
		if !ok {
			return Entry{}, fmt.Errorf("tensor %s: %w", path, ErrMissing)
		}
		want := s.Shape[1:]
		if t.turned {
			want = []int64{want[1], want[0]}
		}
		if !slices.Equal(t.shape, want) {
			return Entry{}, family.Invalidf("tensor %s has shape %v, want %v", path, t.shape, want)
		}
		if t.turned {
			e.turned, e.Shape = true, []int64{s.Shape[0], want[0], want[1]}
			if t.wide > 0 {
				e.Shape[2], e.first, e.taken = t.wide, int(t.first), int(want[1])
			}
		}
		kind, err := t.kind.float()
		if err != nil {
			return Entry{}, fmt.Errorf("tensor %s: %w", path, err)
		}
		if i > 0 && e.Format != quant.DenseOf(kind) {
			return Entry{}, family.Invalidf("tensor %s has type %v, but the experts before it have %v", path, kind, e.Format)
		}
		e.Format = quant.DenseOf(kind)
		e.stack = append(e.stack, t.span)
		e.Bytes += t.span.bytes
	}
	e.weight, e.stored = e.stack[0], e.Format.String()
	return e, nil
}

// precision is the coarsest float type among the tensors.
func precision(entries map[string]Entry) quant.Type {
	t := quant.Float32
	for _, e := range entries {
		t = max(t, e.Format.Type) // the types are in order of their fineness
	}
	return t
}
