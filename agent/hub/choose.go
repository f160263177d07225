package hub

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/weights"
)

// companions are the files of a folder that an engine reads in addition to the
// weights; no others are downloaded.
var companions = []string{
	"config.json", "generation_config.json", "model.safetensors.index.json",
	"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
	"vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "chat_template.json", "preprocessor_config.json", "processor_config.json",
	weights.ModulesFile, "sentence_bert_config.json", "config_sentence_transformers.json",
}

// TemplatesFolder is the folder of a model's named chat templates, which transformers writes
// next to chat_template.jinja.
const TemplatesFolder = "additional_chat_templates"

// IsTemplate reports whether a path is that of a named chat template of the model in a folder.
func IsTemplate(p, folder string) bool {
	return path.Ext(p) == ".jinja" && path.Dir(p) == path.Join(folder, TemplatesFolder)
}

// IsWeights reports whether a path is that of safetensors weights that loaders
// read, as opposed to adapters and copies in other formats.
func IsWeights(p string) bool {
	return strings.HasSuffix(p, ".safetensors") && strings.HasPrefix(path.Base(p), "model")
}

// Choice is what of a repository makes the model.
type Choice struct {
	Format model.Format
	// Folder of the repository that the model lies in; empty where that is the
	// repository itself.
	Folder string
	// Files with their paths in the repository, sorted. All of a folder's lie in
	// the same one, but for named chat templates and those that WithModules adds.
	Files []Entry
}

// Modules returns the file that lists the folders which belong to the model, if
// it has one.
func (c Choice) Modules() (Entry, bool) {
	for _, f := range c.Files {
		if f.Path == path.Join(c.Folder, weights.ModulesFile) {
			return f, true
		}
	}
	return Entry{}, false
}

// WithModules adds what an engine reads in the folders of a model's modules:
// their configuration, where the listing has one, and no weights.
func (c Choice) WithModules(files []Entry, modules []weights.Module) (Choice, error) {
	c.Files = slices.Clone(c.Files)
	for _, m := range modules {
		name := m.ConfigPath()
		if name == "" {
			continue
		}
		at := slices.IndexFunc(files, func(f Entry) bool { return f.Path == path.Join(c.Folder, name) })
		if at >= 0 && !slices.Contains(c.Files, files[at]) {
			c.Files = append(c.Files, files[at])
		}
	}
	return c, c.settle()
}

// settle sorts the files. It refuses two that have one path or are one file on a Mac's disk,
// and more than a record can hold.
func (c Choice) settle() error {
	slices.SortFunc(c.Files, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	for i := 1; i < len(c.Files); i++ {
		if c.Files[i].Path == c.Files[i-1].Path {
			return unclear("a file is listed twice", c.Files[i:i+1])
		}
	}
	paths := make([]string, len(c.Files))
	for i, f := range c.Files {
		paths[i] = f.Path
	}
	if a, b, found := model.Clash(paths); found {
		return unclear("two files differ in case or accents alone, so they are one on a Mac's disk; rename one", []Entry{{Path: a}, {Path: b}})
	}
	if len(c.Files) > maxFiles {
		return unclear(fmt.Sprintf("the model has %d files; at most %d are supported", len(c.Files), maxFiles), nil)
	}
	return nil
}

// Choose picks the files of the model from a listing: one GGUF file, or the
// model*.safetensors of one folder and the files that belong to them. globs limit
// the choice, as in path.Match, by the path or its last element. An ambiguous
// choice is an error that lists the candidates.
func Choose(files []Entry, globs []string) (Choice, error) {
	if comparisons(files, globs) > maxComparisons {
		return Choice{}, fail("model.files has too many or too long patterns with * for the %d files of the source; use fewer or shorter ones, or the model's own folder", len(files))
	}
	var ggufs, tensors []Entry
	for _, f := range files {
		ok, err := matches(f.Path, globs)
		switch {
		case err != nil:
			return Choice{}, err
		case !ok:
		case strings.HasSuffix(f.Path, ".gguf"):
			ggufs = append(ggufs, f)
		case IsWeights(f.Path):
			tensors = append(tensors, f)
		}
	}
	switch {
	case len(ggufs) == 0 && len(tensors) == 0:
		return Choice{}, unclear("the source contains neither a .gguf file nor a model*.safetensors file", files)
	case len(ggufs) > 0 && len(tensors) > 0:
		return Choice{}, unclear("the source contains both .gguf and .safetensors files; list the files to use in model.files", append(ggufs, tensors...))
	case len(ggufs) > 1:
		return Choice{}, unclear("the source contains several .gguf files; name the one to use in model.files", ggufs)
	case len(ggufs) == 1:
		return Choice{Format: model.FormatGGUF, Files: ggufs}, nil
	}
	folder, tensors := modelFolder(tensors, files)
	for _, t := range tensors {
		if folderOf(t) != folder {
			return Choice{}, unclear("several folders contain .safetensors files; append one folder to the source, or list its files in model.files, such as \"FOLDER/*\"", tensors)
		}
	}
	if forms := formsOf(tensors); len(forms) > 1 {
		return Choice{}, unclear(fmt.Sprintf("the source contains the weights in %d variants; list the files of one in model.files", len(forms)), tensors)
	}
	c := Choice{Format: model.FormatSafetensors, Folder: folder, Files: tensors}
	for _, f := range files {
		if folderOf(f) == folder && slices.Contains(companions, path.Base(f.Path)) || IsTemplate(f.Path, folder) {
			c.Files = append(c.Files, f)
		}
	}
	if !slices.ContainsFunc(c.Files, func(f Entry) bool { return path.Base(f.Path) == "config.json" }) {
		return Choice{}, unclear("there is no config.json next to the .safetensors files", files)
	}
	return c, c.settle()
}

// moduleFolder is how sentence-transformers names the folder of a module.
var moduleFolder = regexp.MustCompile(`^\d+_[A-Za-z]+$`)

// modelFolder is the uppermost folder of weights. Where that is one of modules,
// those in the folders of modules are left out: whether an engine runs the model
// without them is for who reads modules.json to say.
func modelFolder(tensors, files []Entry) (string, []Entry) {
	folder := folderOf(slices.MinFunc(tensors, func(a, b Entry) int { return strings.Count(a.Path, "/") - strings.Count(b.Path, "/") }))
	if !slices.ContainsFunc(files, func(f Entry) bool { return f.Path == path.Join(folder, weights.ModulesFile) }) {
		return folder, tensors
	}
	return folder, slices.DeleteFunc(slices.Clone(tensors), func(t Entry) bool {
		dir := folderOf(t)
		return dir != folder && path.Join(folder, path.Base(dir)) == dir && moduleFolder.MatchString(path.Base(dir))
	})
}

// form is a name of weights that are whole: model.safetensors, one file of
// several, and either with a word for a variant, such as model.fp16.safetensors.
var form = regexp.MustCompile(`^model(\.[A-Za-z0-9_-]+?)?(?:-\d+-of-(\d+))?\.safetensors$`)

// formsOf are the variants and numbers of parts in which a folder has its
// weights; an engine that read two of them would read everything twice.
func formsOf(tensors []Entry) map[string]bool {
	out := map[string]bool{}
	for _, t := range tensors {
		if m := form.FindStringSubmatch(path.Base(t.Path)); m != nil {
			out[m[1]+"/"+m[2]] = true
		}
	}
	return out
}

// maxFiles is how many files a model's record holds.
const maxFiles = 256

func folderOf(f Entry) string {
	if d := path.Dir(f.Path); d != "." {
		return d
	}
	return ""
}

// maxComparisons bounds the steps of matches for all files of a listing, which no context ends:
// they take some seconds.
const maxComparisons = 1 << 27

// comparisons returns how many steps matches takes at most for all files: what follows a * is
// compared at each position of a path.
func comparisons(files []Entry, globs []string) int {
	paths, patterns := 0, 0
	for _, f := range files {
		paths += len(f.Path)
	}
	for _, g := range globs {
		if _, after, star := strings.Cut(g, "*"); star {
			patterns += len(after)
		}
	}
	return paths * patterns
}

func matches(p string, globs []string) (bool, error) {
	if len(globs) == 0 {
		return true, nil
	}
	for _, g := range globs {
		whole, err := path.Match(g, p)
		if err != nil {
			return false, fail("model.files contains %.64q, which is not a valid pattern; use *, ? and [a-z]", g)
		}
		if last, _ := path.Match(g, path.Base(p)); whole || last {
			return true, nil
		}
	}
	return false, nil
}

// unclear names a few of the files that there are.
func unclear(why string, files []Entry) *download.Error {
	const most = 8
	var names []string
	for _, f := range files {
		names = append(names, f.Path)
	}
	slices.Sort(names)
	more := ""
	if len(names) > most {
		names, more = names[:most], ", …"
	}
	said := "cannot choose a model: " + why
	if len(names) > 0 {
		said += " (" + strings.Join(names, ", ") + more + ")"
	}
	return &download.Error{Reason: v1alpha1.ReasonInvalidModel, Message: said}
}
