package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// CatchUp ends the operator, which then starts again, if its cache never shows one of its own writes.
// Reads wait for all earlier writes of their kind. If a watch is down while an object is written and
// deleted, and cannot be resumed, the list that replaces it has neither event, and reads of the kind
// would wait until another object of it changes.
type CatchUp struct {
	Client client.Reader
	// Every is the interval of the checks, and Patience how long a write may take to be in the cache.
	Every, Patience time.Duration
}

// catchUpEvery and catchUpPatience leave time for a watch whose connection broke: that is noticed after
// 45 s, and it is opened again after up to 30 s.
const (
	catchUpEvery    = 30 * time.Second
	catchUpPatience = 3 * time.Minute
)

// Written returns lists of the kinds that the operator writes and reads from its cache.
func Written() []client.ObjectList {
	return []client.ObjectList{
		&v1alpha1.MacNodeList{}, &v1alpha1.MacAssignmentList{}, &v1alpha1.MacClassList{}, &v1alpha1.NamespaceRulesList{},
		&v1alpha1.ModelDeploymentList{}, &v1alpha1.ModelReplicaList{}, &appsv1.ControllerRevisionList{},
		&corev1.SecretList{}, &corev1.ConfigMapList{}, &corev1.ServiceAccountList{}, &coordinationv1.LeaseList{},
		&rbacv1.RoleList{}, &rbacv1.RoleBindingList{}, &rbacv1.ClusterRoleList{}, &rbacv1.ClusterRoleBindingList{},
		&certificatesv1.CertificateSigningRequestList{},
	}
}

// Start checks until the context ends. It returns an error when a write stays missing.
func (c *CatchUp) Start(ctx context.Context) error {
	tick := time.NewTicker(c.Every)
	defer tick.Stop()
	for {
		for _, list := range Written() {
			if err := c.check(ctx, list); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (c *CatchUp) check(ctx context.Context, list client.ObjectList) error {
	within, stop := context.WithTimeout(ctx, c.Patience)
	defer stop()
	err := c.Client.List(within, list, client.Limit(1), client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency)
	if err != nil {
		return nil // there is no cache yet, for which reconcilers wait
	}
	err = c.Client.List(within, list, client.Limit(1), client.UnsafeDisableDeepCopy)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fmt.Errorf("the cache lacks a write of %s old, so that reads wait: %T: %w", c.Patience, list, err)
	}
	return nil
}
