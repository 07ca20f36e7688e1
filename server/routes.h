/* SPDX-License-Identifier: Apache-2.0
 * The handlers behind the route table in routes.c. A new endpoint is a route_*.c file, its lines here and its
 * rows in the table. */
#ifndef SPL_SERVER_ROUTES_H
#define SPL_SERVER_ROUTES_H

#include "server/exchange.h"

/* route_openai.c */
void spl_route_chat(spl_exchange *x);
void spl_route_completions(spl_exchange *x);
/* route_anthropic.c */
void spl_route_messages(spl_exchange *x);
void spl_route_count_tokens(spl_exchange *x);
/* route_text.c */
void spl_route_tokenize(spl_exchange *x);
void spl_route_detokenize(spl_exchange *x);
void spl_route_apply_template(spl_exchange *x);
/* route_info.c: answered on the HTTP thread */
void spl_route_index(spl_exchange *x);
void spl_route_health(spl_exchange *x);
void spl_route_ready(spl_exchange *x);
void spl_route_models(spl_exchange *x);
void spl_route_model(spl_exchange *x);
void spl_route_status(spl_exchange *x);
void spl_route_metrics(spl_exchange *x);

#endif
