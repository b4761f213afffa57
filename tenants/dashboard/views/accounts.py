"""Signing in and out, and choosing among one's tenants."""

from django.contrib.auth.views import LoginView, LogoutView
from django.http import Http404, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from tenants.access import choose_tenant
from tenants.dashboard.forms import SignInForm
from tenants.dashboard.members import MemberRequest, members_only
from tenants.models import Tenant

sign_in = LoginView.as_view(authentication_form=SignInForm, redirect_authenticated_user=True)
sign_out = LogoutView.as_view()


@require_POST
@members_only()
def switch_tenant(request: MemberRequest) -> HttpResponse:
    """To a tenant by its slug. One that the user does not belong to looks like one that does not exist."""
    tenant = Tenant.objects.filter(slug=request.POST.get("tenant", "")).first()
    if tenant is None or not choose_tenant(request, tenant.pk):
        raise Http404
    return redirect("dashboard:home")
