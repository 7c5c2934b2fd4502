"""What `holdfast.django` promises, as tests of a Django project: Django's own runner runs them, on each database."""
