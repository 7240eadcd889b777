package modelgate

import (
	"context"
	"net/url"
)

// maxWhole is the most rows of a list that is read whole, once a day.
const maxWhole = 10_000

// GroupTransactions reads all transactions of a group, of all types. They may come
// late: that there is none proves nothing yet.
func (c *Client) GroupTransactions(ctx context.Context, group string) (Found[Transaction], error) {
	return listUpTo(ctx, c, maxWhole, "/transactions", url.Values{"group_id": {group}}, readTransaction, func(t Transaction) string { return t.ID },
		func(t Transaction) bool { return t.GroupID == group })
}

// GroupKeys reads all keys of a group, revoked ones too.
func (c *Client) GroupKeys(ctx context.Context, group string) (Found[Key], error) {
	return listUpTo(ctx, c, maxWhole, "/groups/"+url.PathEscape(group)+"/keys", url.Values{}, readKey, func(k Key) string { return k.ID },
		func(k Key) bool { return k.GroupID == group })
}
