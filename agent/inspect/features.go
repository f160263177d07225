package inspect

import (
	"context"
	"time"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/folder"
	"metalfleet.dev/metalfleet/metal/toolcall"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Memory that the templates of a model take, of that for headers: for each byte of their
// files, and for what is parsed and rendered within the limits of templates.
const (
	templateFileMemory = 4
	templateMemory     = 64 << 20
	maxTemplateMemory  = weights.HeaderMemory / 2
)

// contents are what the headers and the templates of a model state.
type contents struct {
	facts    model.Facts
	features []model.Feature
}

// folderFeatures returns the features of the templates in a folder. What cannot be read has
// none: the engine refuses it, or runs it with another template.
func (r *Resolver) folderFeatures(ctx context.Context, f *folder.Folder) ([]model.Feature, error) {
	size := chat.FolderBytes(f)
	if size > (maxTemplateMemory-templateMemory)/templateFileMemory {
		return nil, nil
	}
	return r.features(ctx, size*templateFileMemory, func() (chat.Configuration, error) { return chat.ReadFolder(f) })
}

// probeTime bounds the templates of one model, of any source. Those of another namespace wait for
// perNamespace of them at most, which leaves time within remoteTime.
const probeTime = 30 * time.Second

// probeSteps bounds each render of a probe, for which the models of other namespaces wait. The
// templates of real models take less than 20,000 steps for the short conversations of a probe.
const probeSteps = 1_000_000

// features returns the features of templates while there is memory for them, those of one
// model at a time.
func (r *Resolver) features(ctx context.Context, bytes int64, read func() (chat.Configuration, error)) ([]model.Feature, error) {
	select {
	case r.probing() <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-r.probing() }()
	ctx, cancel := context.WithTimeoutCause(ctx, probeTime, failure(v1alpha1.ReasonInvalidModel,
		"checking the chat templates took longer than %v; simplify them, or choose another model", probeTime))
	defer cancel()
	release, err := r.budget().Reserve(bytes + templateMemory)
	if err != nil {
		return nil, readFault(err)
	}
	defer release()
	c, err := read()
	if err != nil || c.Templates == nil {
		return nil, nil
	}
	return featuresOf(ctx, c), context.Cause(ctx)
}

// featuresOf decides as the engine does when it loads the model, but with fewer steps; not after the
// end of ctx.
func featuresOf(ctx context.Context, c chat.Configuration) []model.Feature {
	o := chat.Options{AddGenerationPrompt: true, Special: c.Special, Now: time.Now()}
	o.Limits.Steps = probeSteps
	if _, err := c.Templates.Pick(false); err != nil {
		return nil // it has templates for other uses
	}
	if err := c.Templates.Check(ctx, o); err != nil {
		return nil
	}
	if format, _, err := toolcall.FormatOf(ctx, c.Templates, o); err != nil || format == toolcall.None {
		return []model.Feature{model.Chat}
	}
	return []model.Feature{model.Chat, model.Tools}
}
