//go:build !race

package modeldeployment

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// builderIndexer gives a fake client the operator's indexes.
type builderIndexer struct{ b *fake.ClientBuilder }

func (i builderIndexer) IndexField(_ context.Context, o client.Object, field string, extract client.IndexerFunc) error {
	i.b.WithIndex(o, field, extract)
	return nil
}
