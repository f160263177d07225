package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

const (
	tinyFile, slowFile = "tiny.gguf", "slow.gguf"
	// slowContext is that of the slow model: an answer of full length takes seconds.
	slowContext = 4096
	// room labels a Mac with the story whose replicas may go there.
	room = "test-delete/room"
)

// test is one story.
type test struct {
	*fleet.Fleet
	took time.Duration // of the delete
}

func mac(name string) fleet.Mac { return fleet.Mac{Name: name, Chip: "M4Max", Memory: "64Gi"} }

// serve deploys a model on a Mac and waits until it is ready there.
func (t *test) serve(ctx context.Context, namespace, name, mac string, change func(*v1alpha1.ModelDeployment)) (*v1alpha1.ModelDeployment, error) {
	if err := t.label(ctx, mac, mac); err != nil {
		return nil, err
	}
	md := fleet.Model{Name: name, File: tinyFile, DrainSeconds: 1}.Deployment()
	md.Namespace = namespace
	md.Spec.Placement.NodeSelector = map[string]string{room: mac}
	if change != nil {
		change(md)
	}
	if err := t.Client.Create(ctx, md); err != nil {
		return nil, fmt.Errorf("create %s/%s: %w", namespace, name, err)
	}
	return md, t.servedOn(ctx, md, mac)
}

// servedOn waits until a deployment has one replica, and that is ready on a Mac.
func (t *test) servedOn(ctx context.Context, md *v1alpha1.ModelDeployment, mac string) error {
	return t.until(ctx, md.Namespace+"/"+md.Name+" is served on "+mac, func(ctx context.Context) error {
		if err := t.Client.Get(ctx, client.ObjectKeyFromObject(md), md); err != nil {
			return err
		}
		replicas, err := t.replicas(ctx, md)
		if err != nil {
			return err
		}
		if len(replicas) != 1 || replicas[0].Spec.NodeName != mac || md.Status.ReadyReplicas != 1 {
			return fmt.Errorf("%d replicas, %d ready; conditions %v", len(replicas), md.Status.ReadyReplicas, md.Status.Conditions)
		}
		return nil
	})
}

func (t *test) replicas(ctx context.Context, md *v1alpha1.ModelDeployment) ([]v1alpha1.ModelReplica, error) {
	var list v1alpha1.ModelReplicaList
	err := t.Client.List(ctx, &list, client.InNamespace(md.Namespace), client.MatchingLabels{v1alpha1.LabelDeployment: md.Name})
	return list.Items, err
}

func (t *test) noReplicas(ctx context.Context, md *v1alpha1.ModelDeployment) error {
	replicas, err := t.replicas(ctx, md)
	if err == nil && len(replicas) > 0 {
		err = fmt.Errorf("%d replicas are left", len(replicas))
	}
	return err
}

// label lets replicas of a story onto a Mac.
func (t *test) label(ctx context.Context, mac, story string) error {
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, room, story)
	node := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: mac}}
	if err := t.Client.Patch(ctx, node, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		return fmt.Errorf("label Mac %s: %w", mac, err)
	}
	return nil
}

// losePower ends agent and engine of a Mac at once.
func (t *test) losePower(mac string) error {
	engine, err := t.onlyEngine(mac)
	if err != nil {
		return err
	}
	return errors.Join(t.KillAgent(mac), engine.Kill())
}

func (t *test) onlyEngine(mac string) (fleet.Engine, error) {
	engines, err := t.MacEngines(mac)
	if err != nil {
		return fleet.Engine{}, err
	}
	if len(engines) != 1 {
		return fleet.Engine{}, fmt.Errorf("%d engines run on the Mac %s, want 1", len(engines), mac)
	}
	return engines[0], nil
}

// remove deletes an object and waits until it is gone.
func (t *test) remove(ctx context.Context, o client.Object) error {
	if err := t.Client.Delete(ctx, o); err != nil {
		return fmt.Errorf("delete %s: %w", o.GetName(), err)
	}
	return t.gone(ctx, o)
}

// gone waits until an object that was deleted is gone, and takes the time.
func (t *test) gone(ctx context.Context, o client.Object) error {
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %s", limit))
	defer cancel()
	err := fleet.Poll(ctx, 100*time.Millisecond, o.GetName()+" is gone", func(ctx context.Context) error {
		err := t.Client.Get(ctx, client.ObjectKeyFromObject(o), o)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("it is there, finalizers %v", o.GetFinalizers())
		}
		return err
	})
	t.took = time.Since(began)
	return err
}

// waitStage waits until the one replica of a deployment is at a stage.
func (t *test) waitStage(ctx context.Context, md *v1alpha1.ModelDeployment, stage v1alpha1.Stage) error {
	return t.until(ctx, "the replica of "+md.Name+" is "+string(stage), func(ctx context.Context) error {
		replicas, err := t.replicas(ctx, md)
		if err != nil {
			return err
		}
		if len(replicas) != 1 || replicas[0].Status.Progress.Stage != stage {
			return fmt.Errorf("%d replicas, the first at %v", len(replicas), replicas)
		}
		return nil
	})
}

// longAnswer begins an answer and returns once its first text is there.
func (t *test) longAnswer(ctx context.Context, model string) (<-chan error, error) {
	begun, ended := make(chan struct{}, slowContext), make(chan error, 1)
	go func() {
		_, err := fleet.Ask(ctx, t.URL, fleet.Question{Model: model, Text: "Tell a long story", Stream: true, MaxTokens: slowContext - 200,
			OnText: func(string) {
				select {
				case begun <- struct{}{}:
				default:
				}
			}})
		ended <- err
	}()
	select {
	case <-begun:
		return ended, nil
	case err := <-ended:
		return nil, fmt.Errorf("the long answer ended before it began: %w", err)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// nothingOf wants none of what the operator made for a Mac.
func (t *test) nothingOf(ctx context.Context, mac string) error {
	here := metav1.ObjectMeta{Namespace: fleet.Namespace, Name: v1alpha1.AgentObjectName(mac)}
	everywhere := metav1.ObjectMeta{Name: "metalfleet-" + here.Name}
	var errs []error
	for _, o := range []client.Object{
		&corev1.ServiceAccount{ObjectMeta: here}, &corev1.Secret{ObjectMeta: here}, &coordinationv1.Lease{ObjectMeta: here},
		&rbacv1.Role{ObjectMeta: here}, &rbacv1.RoleBinding{ObjectMeta: here},
		&rbacv1.ClusterRole{ObjectMeta: everywhere}, &rbacv1.ClusterRoleBinding{ObjectMeta: everywhere},
	} {
		if err := t.Client.Get(ctx, client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("%T %s is left (%w)", o, o.GetName(), err))
		}
	}
	return errors.Join(errs...)
}

// credentials are what lies in a Mac's state folder, as a thief has them.
func (t *test) credentials(mac string) (client.Client, error) {
	b, err := os.ReadFile(filepath.Join(t.Dir(), mac, "account.json"))
	if err != nil {
		return nil, fmt.Errorf("credentials of Mac %s: %w", mac, err)
	}
	var account struct {
		Token string `json:"token"`
	}
	if err := json.Unmarshal(b, &account); err != nil || account.Token == "" {
		return nil, fmt.Errorf("credentials of Mac %s hold no token: %w", mac, err)
	}
	config := rest.AnonymousClientConfig(t.Env.Config())
	config.BearerToken = account.Token
	return client.New(config, client.Options{Scheme: t.Client.Scheme(), Mapper: t.Client.RESTMapper()})
}

// may wants credentials to read their MacNode.
func (t *test) may(ctx context.Context, c client.Client, mac string) error {
	return c.Get(ctx, key("", mac), &v1alpha1.MacNode{})
}

// mayNot wants them to be refused everything that was theirs. The API server
// may remember a token for 10 s, and learns of roles by a watch.
func (t *test) mayNot(ctx context.Context, c client.Client, mac string) error {
	own := key(fleet.Namespace, v1alpha1.AgentObjectName(mac))
	figure := client.RawPatch(types.MergePatchType, []byte(`{"status":{"agentVersion":"stolen"}}`))
	for what, try := range map[string]func(context.Context) error{
		"read its MacNode": func(ctx context.Context) error { return t.may(ctx, c, mac) },
		"read its Secret":  func(ctx context.Context) error { return c.Get(ctx, own, &corev1.Secret{}) },
		"read its Lease":   func(ctx context.Context) error { return c.Get(ctx, own, &coordinationv1.Lease{}) },
		"write its status": func(ctx context.Context) error {
			return c.Status().Patch(ctx, &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: mac}}, figure, client.DryRunAll)
		},
	} {
		err := t.until(ctx, "the Mac's old credentials may not "+what, func(ctx context.Context) error {
			if err := try(ctx); !apierrors.IsUnauthorized(err) && !apierrors.IsForbidden(err) {
				return fmt.Errorf("got %w, want a refusal", err)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
