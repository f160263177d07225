package weights

import (
	"fmt"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/folder"
)

// Task is the purpose of the model: an encoder computes embeddings, or scores
// if it has a head; a decoder generates text, unless its modules.json
// (sentence-transformers) or its GGUF file specifies a pooling, or that two
// tokens make a score.
func (f *File) Task() (model.Task, error) {
	if f.dir == nil {
		return taskOfMetadata(f.Metadata, f.header), nil
	}
	if f.Dim.Encoder != nil {
		if f.Dim.Encoder.Labels > 0 {
			return model.Rerank, nil
		}
		if !f.dir.Has(ModulesFile) { // its pooling is not guessed
			return "", fmt.Errorf("%s, which specifies the pooling of an encoder: %w", ModulesFile, ErrMissing)
		}
		_, err := ModulesOf(f.dir)
		return model.Embed, err
	}
	return taskOfModules(f.dir)
}

func taskOfModules(dir *folder.Folder) (model.Task, error) {
	modules, err := ModulesOf(dir)
	if err != nil {
		return "", err
	}
	for _, m := range modules {
		switch m.Kind {
		case "Pooling":
			return model.Embed, nil
		case "LogitScore":
			return model.Rerank, nil
		}
	}
	return model.Generate, nil
}

// taskOfMetadata looks at GGUF's pooling_type: 0 is none.
func taskOfMetadata(metadata map[string]any, h *Header) model.Task {
	arch, _ := h.Text("general.architecture")
	if v, ok := metadata[arch+".pooling_type"]; ok && v != uint64(0) {
		return model.Embed
	}
	return model.Generate
}
