package hub

import (
	"path"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/weights"
)

// ChooseAdapter picks the files of an adapter from a listing: its configuration, and its
// factors next to it. Of several folders the uppermost counts.
func ChooseAdapter(files []Entry) (Choice, error) {
	depth := func(e Entry) int { return strings.Count(e.Path, "/") }
	var configs []Entry
	for _, f := range files {
		if path.Base(f.Path) != weights.AdapterConfigFile {
			continue
		}
		switch {
		case len(configs) > 0 && depth(f) > depth(configs[0]):
			continue
		case len(configs) > 0 && depth(f) < depth(configs[0]):
			configs = nil
		}
		configs = append(configs, f)
	}
	switch {
	case len(configs) == 0:
		return Choice{}, unclear("the source contains no "+weights.AdapterConfigFile, files)
	case len(configs) > 1:
		return Choice{}, unclear("the source contains several adapters; append the folder of one to it", configs)
	}
	c := Choice{Format: model.FormatSafetensors, Folder: folderOf(configs[0]), Files: configs}
	for _, f := range files {
		if folderOf(f) == c.Folder && slices.Contains(weights.AdapterFiles(), path.Base(f.Path)) {
			c.Files = append(c.Files, f)
		}
	}
	if len(c.Files) != 2 {
		return Choice{}, unclear("the adapter needs either "+strings.Join(weights.AdapterFiles(), " or ")+" next to its configuration", c.Files)
	}
	return c, c.settle()
}
