package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/rehearse"
	"metalfleet.dev/metalfleet/controllers/placement/plan"
	"metalfleet.dev/metalfleet/metal/weights"
)

const planLong = `Previews the effect of applying the ModelDeployments in a file, and changes
nothing. The API server validates them (a server-side dry run). The operator's own
code then computes the number of replicas, the memory that each needs, and the
Mac that each is placed on, or the reason why a Mac does not fit.

The dimensions of the model come from the fleet, if it has inspected the source.
Otherwise, --model names the model's files on this machine, of which only the
headers are read; without it, the result is "unknown", never a guess. Disk space
is checked, as each Mac last reported it, if the fleet knows the files.

Exit codes: 0 it fits, 1 an error (also a rejected manifest), 3 it does not fit,
4 unknown. Several deployments are evaluated one by one, each in addition to the
current fleet; the exit code is the highest one.`

// planCommand answers where a deployment would run.
type planCommand struct{ *app }

func (a planCommand) plan() *cobra.Command {
	var file, modelDir string
	c := &cobra.Command{
		Use: "plan -f FILE", Short: "Preview the effect of applying a manifest", Long: planLong, Args: none(),
		Example: "  kubectl metalfleet plan -f qwen.yaml\n  kubectl metalfleet plan -f - --model ./Qwen3-8B-4bit < qwen.yaml",
	}
	c.Flags().StringVarP(&file, "filename", "f", "", "YAML or JSON file with ModelDeployments; - for standard input")
	c.Flags().StringVar(&modelDir, "model", "", "folder or GGUF file on this machine; its headers provide the model's dimensions if the fleet does not know them")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if file == "" {
			return usagef("set -f to a file, or to - for standard input")
		}
		manifests, err := a.manifests(file)
		if err != nil {
			return err
		}
		var facts *model.Facts
		if modelDir != "" {
			if facts, err = headers(modelDir); err != nil {
				return err
			}
		}
		cl, err := a.connect()
		if err != nil {
			return err
		}
		return a.planAll(cmd.Context(), cl, manifests, rehearse.Question{Facts: facts, FactsDir: modelDir})
	}
	a.outputFlag(c)
	return c
}

// headers reads the dimensions of a model on this machine.
func headers(path string) (*model.Facts, error) {
	f, err := weights.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the headers of --model %s: %w", path, err)
	}
	defer f.Close()
	facts, err := f.Facts()
	if err != nil {
		return nil, fmt.Errorf("read the headers of --model %s: %w", path, err)
	}
	return &facts, nil
}

// manifests reads the documents of a file; each has to be a ModelDeployment.
func (a planCommand) manifests(file string) ([]*unstructured.Unstructured, error) {
	from := a.In
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("read the manifest: %w", err)
		}
		defer f.Close()
		from = f
	}
	var out []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(from, 4096); ; {
		u := &unstructured.Unstructured{}
		err := decoder.Decode(&u.Object)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the manifest %s: %w", file, err)
		}
		if len(u.Object) == 0 {
			continue
		}
		if u.GroupVersionKind() != v1alpha1.GroupVersion.WithKind("ModelDeployment") {
			return nil, fmt.Errorf("%s contains a %s %q: plan supports only ModelDeployments of %s; remove other objects",
				file, u.GetKind(), u.GetName(), v1alpha1.GroupVersion)
		}
		out = append(out, u)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s contains no ModelDeployment", file)
	}
	return out, nil
}

// planAll judges each manifest; the worst verdict is the exit code.
func (a planCommand) planAll(ctx context.Context, c *cluster, manifests []*unstructured.Unstructured, q rehearse.Question) error {
	worst := exitOK
	answers := []rehearse.Answer{}
	for _, m := range manifests {
		answer, err := a.planOne(ctx, c, m, q)
		if err != nil {
			return err
		}
		answers = append(answers, answer)
		switch answer.Verdict {
		case rehearse.DoesNotFit:
			worst = max(worst, exitNoFit)
		case rehearse.Unknown:
			worst = max(worst, exitUnknown)
		}
	}
	if err := a.printAnswers(answers); err != nil {
		return err
	}
	if worst != exitOK {
		return answer(worst)
	}
	return nil
}

func (a planCommand) printAnswers(answers []rehearse.Answer) error {
	if a.json() {
		return a.printJSON(map[string]any{"plans": answers})
	}
	for i := range answers {
		if i > 0 {
			fmt.Fprintln(a.Out)
		}
		if err := answers[i].Draw(a.Out, a.ink()); err != nil {
			return err
		}
	}
	return nil
}

func (a planCommand) planOne(ctx context.Context, c *cluster, manifest *unstructured.Unstructured, q rehearse.Question) (rehearse.Answer, error) {
	d, exists, err := a.dryRun(ctx, c, manifest)
	if err != nil {
		return rehearse.Answer{}, err
	}
	w, err := a.world(ctx, c)
	if err != nil {
		return rehearse.Answer{}, err
	}
	if err := errors.Join(a.class(ctx, c, d, &w), a.profile(ctx, c, d, &w)); err != nil {
		return rehearse.Answer{}, err
	}
	q.Deployment, q.Exists = d, exists
	return rehearse.Ask(w, q)
}

func (a planCommand) world(ctx context.Context, c client.Reader) (rehearse.World, error) {
	w := rehearse.World{Now: a.Now()}
	var err error
	if w.Macs, w.Replicas, err = a.fleetObjects(ctx, c); err != nil {
		return w, err
	}
	var deployments v1alpha1.ModelDeploymentList
	if err := c.List(ctx, &deployments); err != nil {
		return w, a.apiError("list deployments", err)
	}
	var revisions appsv1.ControllerRevisionList
	if err := c.List(ctx, &revisions, client.HasLabels{v1alpha1.LabelDeployment}); err != nil {
		return w, a.apiError("list revisions", err)
	}
	w.Deployments, w.Revisions = deployments.Items, revisions.Items
	return w, a.rules(ctx, c, &w)
}

// class reads the PriorityClass that a deployment names; one that there is not
// is for the operator's own decision.
func (a planCommand) class(ctx context.Context, c client.Reader, d *v1alpha1.ModelDeployment, w *rehearse.World) error {
	name := d.Spec.PriorityClassName
	if name == "" {
		return nil
	}
	class := &schedulingv1.PriorityClass{}
	err := c.Get(ctx, client.ObjectKey{Name: name}, class)
	switch {
	case err == nil:
		w.Class = class
	case !apierrors.IsNotFound(err):
		return a.apiError("read PriorityClass "+name, err)
	}
	return nil
}

// profile reads the ModelProfile that a deployment names. A missing one is no error
// here: the operator's own decision reports it.
func (a planCommand) profile(ctx context.Context, c client.Reader, d *v1alpha1.ModelDeployment, w *rehearse.World) error {
	name := d.Spec.ProfileName
	if name == "" {
		return nil
	}
	profile := &v1alpha1.ModelProfile{}
	err := c.Get(ctx, client.ObjectKey{Name: name}, profile)
	switch {
	case err == nil:
		w.Profile = profile
	case !apierrors.IsNotFound(err):
		return a.apiError("read ModelProfile "+name, err)
	}
	return nil
}

// rules reads the rules of placement. A user who may not read them gets a note
// that they were left out.
func (a planCommand) rules(ctx context.Context, c client.Reader, w *rehearse.World) error {
	rules := &v1alpha1.NamespaceRules{}
	err := c.Get(ctx, client.ObjectKey{Name: v1alpha1.NamespaceRulesName}, rules)
	switch {
	case err == nil:
		w.Rules = plan.NewRules(rules, false)
	case apierrors.IsForbidden(err):
		w.NoRules = "you are not allowed to read the NamespaceRules: an administrator's limits of memory and Macs for this namespace are not considered"
	case !apierrors.IsNotFound(err):
		return a.apiError("read the NamespaceRules", err)
	}
	return nil
}

// dryRun has the API server validate a manifest, fill its defaults and merge it
// with what is stored, as kubectl apply would, and stores nothing.
func (a planCommand) dryRun(ctx context.Context, c *cluster, manifest *unstructured.Unstructured) (d *v1alpha1.ModelDeployment, exists bool, err error) {
	if manifest.GetNamespace() == "" {
		manifest.SetNamespace(c.namespace)
	}
	key := client.ObjectKeyFromObject(manifest)
	did := fmt.Sprintf("validate %s", key)
	var stored unstructured.Unstructured
	stored.SetGroupVersionKind(manifest.GroupVersionKind())
	err = c.Get(ctx, key, &stored)
	merged := manifest.DeepCopy()
	switch {
	case apierrors.IsNotFound(err):
		err = c.Create(ctx, merged, client.DryRunAll, client.FieldOwner(fieldManager), client.FieldValidation(metav1.FieldValidationStrict))
	case err == nil:
		exists = true
		var patch []byte
		if patch, err = merge(&stored, manifest); err == nil {
			merged = stored.DeepCopy()
			err = c.Patch(ctx, merged, client.RawPatch(types.MergePatchType, patch), client.DryRunAll,
				client.FieldOwner(fieldManager), client.FieldValidation(metav1.FieldValidationStrict))
		}
	}
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		return nil, exists, fmt.Errorf("%s: the API server rejected the manifest: %w", did, err)
	}
	if err != nil {
		return nil, exists, a.apiError(did, err)
	}
	d = &v1alpha1.ModelDeployment{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(merged.Object, d); err != nil {
		return nil, exists, fmt.Errorf("%s: read the response of the API server: %w", did, err)
	}
	return d, exists, nil
}

// merge is the patch of kubectl apply: of what was applied before, what is
// wanted now and what is stored.
func merge(stored, manifest *unstructured.Unstructured) ([]byte, error) {
	current, err := json.Marshal(stored)
	if err != nil {
		return nil, err
	}
	modified, err := json.Marshal(manifest)
	if err != nil {
		return nil, err
	}
	applied := []byte(stored.GetAnnotations()["kubectl.kubernetes.io/last-applied-configuration"])
	if len(bytes.TrimSpace(applied)) == 0 {
		applied = nil
	}
	patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch(applied, modified, current)
	if err != nil {
		return nil, fmt.Errorf("merge with the stored object: %w", err)
	}
	return patch, nil
}
