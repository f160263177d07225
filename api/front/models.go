package front

import (
	"iter"
	"net/http"
	"strings"

	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
)

// Models are the models that one client may use.
type Models struct {
	// List returns all of them.
	List func() (iter.Seq[openai.Model], error)
	// Named returns the one with a name, or openai.ModelNotFound.
	Named func(name string) (openai.Model, error)
}

// IsModels reports whether a path is that of the list of models, or of one model.
func IsModels(path string) bool {
	return path == dialect.PathModels || strings.HasPrefix(path, dialect.PathModels+"/")
}

// Serve answers a request for the list of models, or for the one that the path
// names.
func (m Models) Serve(w http.ResponseWriter, r *http.Request) error {
	if name := ModelOf(r.URL.Path); name != "" {
		model, err := m.Named(name)
		if err != nil {
			return err
		}
		return WriteJSON(w, model)
	}
	list, err := m.List()
	if err != nil {
		return err
	}
	return WriteList(w, openai.NewModelList(), list)
}

// ModelOf returns the model that the path of a request for models names; empty for
// the list.
func ModelOf(path string) string {
	name, _ := strings.CutPrefix(strings.TrimPrefix(path, dialect.PathModels), "/")
	return name
}
